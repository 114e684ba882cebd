#!/usr/bin/env bash
# Builds a control plane and a kubelet from Debian's source package and prints the folder that contains them.
#
#   tests/cluster/build.sh            builds missing binaries; later calls return immediately
#
# The folder is ${XDG_CACHE_HOME:-~/.cache}/gpuledger/kubernetes-VERSION, outside of the checkout; `make clean` keeps it.
# Requires bookworm's apt, golang-1.19-go, rsync, gcc and dpkg-dev, which `make e2e` installs. Uses a separate sources.list,
# so the machine's apt sources do not change.
set -euo pipefail

VERSION=1.20.2
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/gpuledger/kubernetes-$VERSION
BINARIES=(kube-apiserver kube-controller-manager kube-scheduler kubelet)

is_complete() {
  for binary in "${BINARIES[@]}"; do [ -x "$CACHE/$binary" ] || return 1; done
}

log() { echo "$(date +%T) $*" >&2; }

apt_get() { # apt-get with separate sources and lists, in $work/apt
  mkdir -p apt/lists/partial apt/cache/archives/partial
  for type in deb deb-src; do
    echo "$type [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR bookworm main"
  done >apt/sources.list
  apt-get -qq -o "Dir::Etc::SourceList=$PWD/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o "Dir::State::Lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache" -o APT::Sandbox::User=root \
    -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
}

unpack() {
  log "kubernetes $VERSION: downloading Debian's source package"
  apt_get update
  apt_get source --download-only kubernetes
  apt_get download golang-github-modern-go-reflect2-dev
  dpkg-source --no-check -x kubernetes_*.dsc tree >/dev/null
  # The vendored reflect2 1.0.1 crashes the API server on its first custom resource with Go 1.18 and newer.
  dpkg-deb -x golang-github-modern-go-reflect2-dev_*.deb reflect2
  local vendored=tree/vendor/github.com/modern-go/reflect2
  rm -r "$vendored"
  cp -r reflect2/usr/share/gocode/src/github.com/modern-go/reflect2 "$vendored"
  rm -f "$vendored/go.mod"
}

compile() { # all with cgo, so that shared packages are compiled once
  log "kubernetes $VERSION: compiling ${BINARIES[*]} (about five minutes on two cores, once)"
  mkdir -p tree/.go/src/k8s.io
  ln -sfn ../../.. tree/.go/src/k8s.io/kubernetes
  # Less frequent garbage collection costs about 1 GB of memory and saves a tenth of the time.
  env -u GOFLAGS PATH="/usr/lib/go-1.19/bin:$PATH" GOGC=400 GOPATH="$PWD/tree/.go" GOCACHE="$PWD/gocache" GOTOOLCHAIN=local GOPROXY=off \
    KUBE_GIT_VERSION="v$VERSION" KUBE_GIT_TREE_STATE=archive KUBE_GIT_COMMIT=debian \
    KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 KUBE_CGO_OVERRIDES="${BINARIES[*]}" \
    nice make -C tree WHAT="${BINARIES[*]/#/cmd/}" >compile.log 2>&1 || { tail -40 compile.log >&2; exit 1; }
}

mkdir -p "$CACHE"
exec 9>"$CACHE/lock"
flock 9 # a second caller waits for the binaries of the first
if ! is_complete; then
  rm -rf "$CACHE"/build.* # left by a killed build
  work=$(mktemp -d "$CACHE/build.XXXXXX")
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  cd "$work"
  unpack
  compile
  for binary in "${BINARIES[@]}"; do mv "tree/_output/bin/$binary" "$CACHE/"; done
  log "kubernetes $VERSION: ready in $CACHE"
fi
echo "$CACHE"
