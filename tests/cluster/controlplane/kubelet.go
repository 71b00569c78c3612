package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	vk "github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

type options struct {
	kubeconfig, node, work, listen, cert, key string
}

// runKubelet registers the node described by --node (a v1.Node as JSON: labels, taints, capacity) and runs
// every pod bound to it. SIGTERM and SIGINT stop it and kill its pods, as pulling the plug does; SIGUSR1 is
// a graceful node shutdown, as a Spot node is given: SIGTERM to every pod, their grace, then the end.
func runKubelet(args []string) int {
	var o options
	flags := flag.NewFlagSet("kubelet", flag.ExitOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the API server")
	flags.StringVar(&o.node, "node", "", "v1.Node as JSON")
	flags.StringVar(&o.work, "work", "", "folder for logs and volumes")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:10250", "where the API server fetches logs")
	flags.StringVar(&o.cert, "cert", "", "TLS certificate")
	flags.StringVar(&o.key, "key", "", "TLS key")
	_ = flags.Parse(args)
	if err := serve(o); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		return 1
	}
	return 0
}

func serve(o options) error {
	node, err := readNode(o)
	if err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	runner := &runner{node: node.Name, work: o.work, pods: map[string]*container{}}
	mux := http.NewServeMux()
	agent, err := nodeutil.NewNode(node.Name,
		func(nodeutil.ProviderConfig) (nodeutil.Provider, vk.NodeProvider, error) { return runner, nil, nil },
		nodeutil.WithClient(client),
		func(c *nodeutil.NodeConfig) error {
			c.NodeSpec, c.HTTPListenAddr, c.Handler, c.NumWorkers = *node, o.listen, mux, 32
			return nil
		},
		nodeutil.WithTLSConfig(nodeutil.WithKeyPairFromPath(o.cert, o.key)),
		nodeutil.AttachProviderRoutes(mux),
	)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	shutdown := make(chan os.Signal, 1)
	signal.Notify(shutdown, syscall.SIGUSR1)
	go func() {
		<-shutdown
		runner.shutDown()
		time.Sleep(2 * time.Second) // let the last statuses reach the API server
		stop()
	}()
	err = agent.Run(ctx)
	runner.killAll()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func readNode(o options) (*corev1.Node, error) {
	raw, err := os.ReadFile(o.node)
	if err != nil {
		return nil, err
	}
	var node corev1.Node
	if err := json.Unmarshal(raw, &node); err != nil {
		return nil, fmt.Errorf("%s: %w", o.node, err)
	}
	host, text, err := net.SplitHostPort(o.listen)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}}
	if node.Status.Allocatable == nil {
		node.Status.Allocatable = node.Status.Capacity
	}
	return &node, nil
}
