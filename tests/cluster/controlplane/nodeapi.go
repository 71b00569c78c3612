package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	dto "github.com/prometheus/client_model/go"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// GetContainerLogs serves a pod's log for as long as the pod is known to the API server.
func (r *runner) GetContainerLogs(
	_ context.Context, namespace, pod, _ string, o api.ContainerLogOpts,
) (io.ReadCloser, error) {
	log, err := lastLines(filepath.Join(r.folder(namespace, pod), "log"), o.Tail)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errdefs.NotFound(err.Error())
	}
	return log, err
}

var errUnsupported = errors.New("not supported by the test kubelet")

func (r *runner) RunInContainer(context.Context, string, string, string, []string, api.AttachIO) error {
	return errUnsupported
}

func (r *runner) AttachToContainer(context.Context, string, string, string, api.AttachIO) error {
	return errUnsupported
}

func (r *runner) GetStatsSummary(context.Context) (*statsv1alpha1.Summary, error) {
	return &statsv1alpha1.Summary{}, nil
}

func (r *runner) GetMetricsResource(context.Context) ([]*dto.MetricFamily, error) {
	return nil, nil
}

func (r *runner) PortForward(context.Context, string, string, int32, io.ReadWriteCloser) error {
	return errUnsupported
}
