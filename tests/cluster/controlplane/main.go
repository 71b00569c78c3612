// controlplane is one binary with a real Kubernetes control plane for tests: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, unmodified, and a test kubelet that runs a pod's command as
// a local process. The first argument names the role; the rest are that program's own flags.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	roles := map[string]func(){
		"etcd":               func() { etcdmain.Main(os.Args) },
		"apiserver":          func() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) },
		"controller-manager": func() { os.Exit(cli.Run(controllermanager.NewControllerManagerCommand())) },
		"scheduler":          func() { os.Exit(cli.Run(scheduler.NewSchedulerCommand())) },
		"kubelet":            func() { os.Exit(runKubelet(os.Args[1:])) },
	}
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|apiserver|controller-manager|scheduler|kubelet [flags]")
		os.Exit(2)
	}
	role := os.Args[1]
	os.Args = append([]string{role}, os.Args[2:]...)
	roles[role]()
}
