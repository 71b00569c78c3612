package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// container is the one container of a pod: a process with a log, volumes, a memory limit and an end.
type container struct {
	pod       *corev1.Pod
	cmd       *exec.Cmd
	started   metav1.Time
	done      chan struct{}
	oomKilled atomic.Bool
	// disrupted: the node is shutting down, so the pod fails whatever its exit code says.
	disrupted atomic.Bool
}

func (c *container) tag() string { return string(c.pod.UID) }

// start runs the container's command; the error says why a kubelet would report StartError.
func (c *container) start(folder string) error {
	spec := c.pod.Spec.Containers[0]
	m, err := makeVolumes(c.pod, folder)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	var argv []string
	for _, a := range append(append([]string{}, spec.Command...), spec.Args...) {
		argv = append(argv, m.resolve(a))
	}
	if len(argv) == 0 { // an image's own entry point is unknown here
		argv = []string{"false"}
	}
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.Dir = log, log, folder
	c.cmd.Env = append(os.Environ(), tagVariable+"="+c.tag())
	for _, e := range spec.Env { // virtual-kubelet has resolved valueFrom by now
		c.cmd.Env = append(c.cmd.Env, e.Name+"="+m.resolve(e.Value))
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return c.cmd.Start()
}

// wait returns how the container ended. What it left running is killed, as a container's end does.
func (c *container) wait() *corev1.ContainerStateTerminated {
	_ = c.cmd.Wait()
	killTree(c.tag())
	code, reason := c.cmd.ProcessState.ExitCode(), "Completed"
	if status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if code != 0 {
		reason = "Error"
	}
	if c.oomKilled.Load() {
		code, reason = 137, "OOMKilled"
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: reason, StartedAt: c.started, FinishedAt: metav1.Now()}
}

// stop sends SIGTERM to the container's first process, as a kubelet does, and kills all when the grace is over.
func (c *container) stop(grace time.Duration) {
	if c.cmd == nil || c.cmd.Process == nil {
		return
	}
	_ = syscall.Kill(c.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(grace):
		killTree(c.tag())
		<-c.done
	}
}

// guardMemory kills the whole container once it is over its memory limit, as cgroup v2 with oom.group does.
func (c *container) guardMemory() {
	limit, ok := c.pod.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
	if !ok {
		return
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
			if memoryOf(c.tag()) > limit.Value() {
				c.oomKilled.Store(true)
				killTree(c.tag())
				return
			}
		}
	}
}
