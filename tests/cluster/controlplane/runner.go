package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// missingImage in an image's name makes its pull fail: there is no registry here to ask.
const missingImage = "/missing/"

// runner is the virtual-kubelet provider: what a node does with the pods bound to it.
type runner struct {
	node, work string
	mu         sync.Mutex
	pods       map[string]*container
	notify     func(*corev1.Pod)
}

func key(namespace, name string) string { return namespace + "/" + name }

func (r *runner) folder(namespace, name string) string {
	return filepath.Join(r.work, namespace+"_"+name)
}

func (r *runner) NotifyPods(_ context.Context, notify func(*corev1.Pod)) { r.notify = notify }

// CreatePod starts a pod: pulls its image (in name only), makes its volumes, runs its command.
func (r *runner) CreatePod(_ context.Context, pod *corev1.Pod) error {
	c := &container{pod: pod.DeepCopy(), started: metav1.Now(), done: make(chan struct{})}
	c.pod.Status.StartTime = &c.started
	r.mu.Lock()
	r.pods[key(pod.Namespace, pod.Name)] = c
	r.mu.Unlock()
	if image := pod.Spec.Containers[0].Image; strings.Contains(image, missingImage) {
		close(c.done)
		r.waiting(c, "ErrImagePull", fmt.Sprintf("failed to pull and unpack image %q: not found", image))
		time.AfterFunc(time.Second, func() {
			r.waiting(c, "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q", image))
		})
		return nil
	}
	folder := r.folder(pod.Namespace, pod.Name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := c.start(folder); err != nil {
		close(c.done)
		r.report(c, corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 128, Reason: "StartError", Message: err.Error(), StartedAt: c.started, FinishedAt: metav1.Now()}})
		return nil
	}
	r.report(c, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: c.started}})
	go c.guardMemory()
	go func() {
		end := c.wait()
		phase := corev1.PodSucceeded
		if end.ExitCode != 0 || c.disrupted.Load() {
			phase = corev1.PodFailed
		}
		r.report(c, phase, corev1.ContainerState{Terminated: end})
		close(c.done)
	}()
	return nil
}

func (r *runner) waiting(c *container, reason, message string) {
	r.report(c, corev1.PodPending, corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
}

// report tells the API server how a pod is, keeping conditions that others have set (an eviction writes
// DisruptionTarget before the pod is stopped; a Job's podFailurePolicy depends on it).
func (r *runner) report(c *container, phase corev1.PodPhase, state corev1.ContainerState) {
	r.mu.Lock()
	ready := corev1.ConditionFalse
	if state.Running != nil {
		ready = corev1.ConditionTrue
	}
	conditions := []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
		{Type: corev1.ContainersReady, Status: ready},
		{Type: corev1.PodReady, Status: ready},
	}
	for _, condition := range c.pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && !c.disrupted.Load() {
			conditions = append(conditions, condition)
		}
	}
	status := &c.pod.Status
	if c.disrupted.Load() {
		status.Reason = "Terminated"
		status.Message = "Pod was terminated in response to imminent node shutdown."
		conditions = append(conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "TerminationByKubelet", Message: status.Message, LastTransitionTime: metav1.Now()})
	}
	status.Phase, status.Conditions = phase, conditions
	spec := c.pod.Spec.Containers[0]
	status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: spec.Name, Image: spec.Image, State: state, Ready: state.Running != nil}}
	snapshot := c.pod.DeepCopy()
	r.mu.Unlock()
	if r.notify != nil {
		r.notify(snapshot)
	}
}

// DeletePod stops a pod within its grace period.
func (r *runner) DeletePod(_ context.Context, pod *corev1.Pod) error {
	c, err := r.find(pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	r.mu.Lock()
	c.pod.Status.Conditions = pod.Status.Conditions
	r.mu.Unlock()
	grace := 30 * time.Second
	if pod.DeletionGracePeriodSeconds != nil {
		grace = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	}
	c.stop(grace)
	r.mu.Lock()
	delete(r.pods, key(pod.Namespace, pod.Name))
	r.mu.Unlock()
	return nil
}

// shutDown is a graceful node shutdown: every pod is stopped at once and fails with DisruptionTarget.
func (r *runner) shutDown() {
	var all sync.WaitGroup
	for _, c := range r.all() {
		c.disrupted.Store(true)
		all.Go(func() {
			grace := 30 * time.Second
			if s := c.pod.Spec.TerminationGracePeriodSeconds; s != nil {
				grace = time.Duration(*s) * time.Second
			}
			c.stop(grace)
		})
	}
	all.Wait()
}

func (r *runner) killAll() {
	for _, c := range r.all() {
		killTree(c.tag())
	}
}

func (r *runner) all() []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*container, 0, len(r.pods))
	for _, c := range r.pods {
		all = append(all, c)
	}
	return all
}

func (r *runner) find(namespace, name string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.pods[key(namespace, name)]; ok {
		return c, nil
	}
	return nil, errdefs.NotFoundf("pod %s/%s is not on node %s", namespace, name, r.node)
}

func (r *runner) UpdatePod(context.Context, *corev1.Pod) error { return nil }

func (r *runner) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	c, err := r.find(namespace, name)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.pod.DeepCopy(), nil
}

func (r *runner) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := r.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

func (r *runner) GetPods(context.Context) ([]*corev1.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(r.pods))
	for _, c := range r.pods {
		pods = append(pods, c.pod.DeepCopy())
	}
	return pods, nil
}

// lastLines returns the last n lines of a file; all of it for n = 0.
func lastLines(path string, n int) (io.ReadCloser, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(text), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if n > 0 && len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return io.NopCloser(strings.NewReader(strings.Join(lines, ""))), nil
}
