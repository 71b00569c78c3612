package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// mounts maps each mount path of the container to a folder of this machine. A container sees its volumes at
// their mount paths; a local process cannot, so resolve rewrites paths in its arguments and environment.
// That is the one way in which a pod's command line differs here from a real node's.
type mounts map[string]string

func (m mounts) resolve(text string) string {
	for path, folder := range m {
		if text == path {
			return folder
		}
		if rest, ok := strings.CutPrefix(text, path+"/"); ok {
			return filepath.Join(folder, rest)
		}
	}
	return text
}

// makeVolumes creates the pod's volumes below folder: emptyDir and downwardAPI with annotations, labels or
// metadata fields. Any other kind is refused, so that a manifest cannot silently lose a volume here.
func makeVolumes(pod *corev1.Pod, folder string) (mounts, error) {
	folders := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		path := filepath.Join(folder, "volumes", v.Name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		folders[v.Name] = path
		switch {
		case v.EmptyDir != nil:
		case v.DownwardAPI != nil:
			for _, item := range v.DownwardAPI.Items {
				value, err := field(pod, item.FieldRef.FieldPath)
				if err != nil {
					return nil, err
				}
				if err := os.WriteFile(filepath.Join(path, item.Path), []byte(value), 0o644); err != nil {
					return nil, err
				}
			}
		default:
			return nil, fmt.Errorf("volume %q: this kubelet knows emptyDir and downwardAPI", v.Name)
		}
	}
	m := mounts{}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		path, ok := folders[mount.Name]
		if !ok {
			return nil, fmt.Errorf("volumeMount %q: the pod has no such volume", mount.Name)
		}
		m[mount.MountPath] = path
	}
	return m, nil
}

func field(pod *corev1.Pod, path string) (string, error) {
	for prefix, values := range map[string]map[string]string{
		"metadata.annotations": pod.Annotations, "metadata.labels": pod.Labels} {
		if rest, ok := strings.CutPrefix(path, prefix+"['"); ok {
			return values[strings.TrimSuffix(rest, "']")], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.uid":
		return string(pod.UID), nil
	}
	return "", fmt.Errorf("fieldPath %q: this kubelet knows metadata.annotations, labels, name and uid", path)
}
