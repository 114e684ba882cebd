#!/usr/bin/env bash
# Make the executables of a release in a Debian 11 (glibc 2.31), for machines with glibc 2.30 and newer. Needs root.
#
#   freeze_for_old_glibc.sh OUT
#
# Debian 11 has Python 3.9 and OpenSSL 1.1, both past their end: Python and OpenSSL 3 are compiled there from the sources
# of Debian 12, with its security patches, once (a quarter of an hour). The root is kept in ~/.cache/gpuledger/old-glibc:
# remove it to get newer sources.
set -euo pipefail
mkdir -p "$1"
out=$(realpath "$1")
checkout=$(realpath "$(dirname "$0")/../..")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuledger/old-glibc
# A change of this script makes a new root.
root=$cache/$(sha256sum "$0" | cut -c1-12)
mkdir -p "$cache"
exec 9> "$cache/lock"
flock 9

# Runs a shell command in the root, which sees the checkout and the output folder.
inside() {
  nice env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PIP_CACHE_DIR=/var/cache/pip \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
    unshare --mount bash -euc '
      root=$1 checkout=$2 out=$3
      for place in proc sys dev tmp; do mount --rbind "/$place" "$root/$place"; done
      mkdir -p "$root/checkout" "$root/out"
      mount --bind -o ro "$checkout" "$root/checkout"
      mount --bind "$out" "$root/out"
      exec chroot "$root" bash -euo pipefail -c "$4"
    ' - "$root" "$checkout" "$out" "$1"
}

if [ ! -e "$root/complete" ]; then
  rm -rf "$root"
  packages=ca-certificates,curl,gcc,g++,make,perl,xz-utils,libc6-dev,zlib1g-dev,libsqlite3-dev,libffi-dev,liblzma-dev
  packages+=,libbz2-dev,uuid-dev,binutils,patch,patchelf
  mmdebstrap --quiet --variant=minbase --include=$packages bullseye "$root" "$mirror"
  # With the certificate authorities of this machine, for pip behind a proxy with its own.
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  apt=$(mktemp -d)
  trap 'rm -rf "$apt"' EXIT
  mkdir -p "$root/src" "$apt/lists/partial" "$apt/cache/archives/partial"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" > "$apt/sources.list"
  apt_get() {
    apt-get -qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
      -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root "$@"
  }
  apt_get update
  (cd "$root/src" && apt_get source --download-only openssl python3.11 >/dev/null)
  inside '
    mkdir -p /src/openssl /src/python
    tar -C /src/openssl --strip-components 1 -xf /src/openssl_*.orig.tar.*z
    tar -C /src/python --strip-components 1 -xf /src/python3.11_*.orig.tar.*z
    tar -C /src/openssl -xf /src/openssl_*.debian.tar.xz
    tar -C /src/python -xf /src/python3.11_*.debian.tar.xz
    # The archives are years old: security fixes are patches.
    apply_patches() {
      names=$(sed -n "$2" "$1/debian/patches/series")
      [ -n "$names" ] || { echo "no patches of $1 to apply"; exit 1; }
      for name in $names; do
        patch --directory "$1" --strip 1 --silent --no-backup-if-mismatch < "$1/debian/patches/$name"
      done
    }
    apply_patches /src/openssl p
    # Those before are for the layout of Debian.
    apply_patches /src/python "/^fix-py_compile/,\$p"
    cd /src/openssl
    ./Configure --prefix=/opt/release --libdir=lib --openssldir=/etc/ssl shared no-tests
    make -s -j"$(nproc)" build_sw
    make -s install_sw
    cd /src/python
    # One of the patches needs what Debian sets in a file of its build.
    sed -i "s/sources=\[.pyexpat.c.\]/&, extra_compile_args=[\"-DPy_BUILD_CORE_MODULE\"]/" setup.py
    ./configure -q --prefix=/opt/release --enable-shared --with-openssl=/opt/release --with-openssl-rpath=auto \
      LDFLAGS=-Wl,-rpath,/opt/release/lib
    make -s -j"$(nproc)"
    make -s install
    rm -rf /src
  ' > "$cache/build.log" 2>&1 || { tail -30 "$cache/build.log"; exit 1; }
  touch "$root/complete"
fi
inside '/checkout/deploy/packages/freeze.sh /opt/release/bin/python3.11 /out'
