package cri

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"tandem.dev/e2e/cluster/internal/config"
)

// Images answers for images: those declared are always there, others cannot be had.
type Images struct {
	images map[string]config.Image
	dir    string
}

var _ internalapi.ImageManagerService = (*Images)(nil)

// NewImages knows the images of options.
func NewImages(options Options) *Images { return &Images{options.Images, options.Dir} }

// find gives an image's name by that name or by the ID that the kubelet was told.
func (i *Images) find(nameOrID string) (name string, err error) {
	known := make([]string, 0, len(i.images))
	for name := range i.images {
		if nameOrID == name || nameOrID == imageID(name) {
			return name, nil
		}
		known = append(known, name)
	}
	sort.Strings(known)
	return "", fmt.Errorf("image %q is not one of this cluster's (%s): there is no registry, add it to `images` in the cluster's configuration", nameOrID, strings.Join(known, ", "))
}

func imageID(name string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name)))
}

func describe(name string) *runtimeapi.Image {
	return &runtimeapi.Image{Id: imageID(name), RepoTags: []string{name}, Size: 1 << 20, Uid: &runtimeapi.Int64Value{Value: 0}, Spec: &runtimeapi.ImageSpec{Image: name}, Pinned: true}
}

// ListImages lists what is declared.
func (i *Images) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	var list []*runtimeapi.Image
	for name := range i.images {
		list = append(list, describe(name))
	}
	return list, nil
}

// ImageStatus has no image in it where there is none: the kubelet then pulls.
func (i *Images) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	name, err := i.find(spec.Image)
	if err != nil {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: describe(name)}, nil
}

// PullImage refuses what is not declared.
func (i *Images) PullImage(_ context.Context, spec *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	name, err := i.find(spec.Image)
	if err != nil {
		return "", err
	}
	return imageID(name), nil
}

// RemoveImage keeps it: there is nothing that could be freed.
func (i *Images) RemoveImage(context.Context, *runtimeapi.ImageSpec) error { return nil }

// ImageFsInfo is about the disk that the cluster's folder is on.
func (i *Images) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(i.dir, &fs); err != nil {
		return nil, fmt.Errorf("look at the disk of %s: %w", i.dir, err)
	}
	usage := []*runtimeapi.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: i.dir},
		UsedBytes:  &runtimeapi.UInt64Value{Value: (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)},
		InodesUsed: &runtimeapi.UInt64Value{Value: fs.Files - fs.Ffree},
	}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}
