package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// tagVariable marks every process of a pod: a container ends with all its processes, whatever sessions and
// process groups they have moved to, and its memory is the memory of all of them.
const tagVariable = "TEST_KUBELET_POD"

// processesOf lists the processes of this machine that carry a pod's tag.
func processesOf(tag string) []int {
	want := []byte(tagVariable + "=" + tag)
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue
		}
		for _, variable := range bytes.Split(environ, []byte{0}) {
			if bytes.Equal(variable, want) {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

// killTree ends every process of a pod, and those they start meanwhile.
func killTree(tag string) {
	for range 20 {
		pids := processesOf(tag)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// memoryOf sums what a cgroup charges to a container: anonymous and shared memory of its processes, in bytes.
func memoryOf(tag string) int64 {
	var total int64
	for _, pid := range processesOf(tag) {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(text), "\n") {
			fields := strings.Fields(line)
			if len(fields) > 1 && (fields[0] == "RssAnon:" || fields[0] == "RssShmem:") {
				kib, _ := strconv.ParseInt(fields[1], 10, 64)
				total += kib * 1024
			}
		}
	}
	return total
}
