#!/usr/bin/env bash
# Make the .deb and the .rpm of the executable folder in BUILT.
#
#   make_packages.sh BUILT OUT NFPM VERSION ARCHITECTURE MAINTAINER
set -euo pipefail
export BUILT OUT=$2 VERSION=$4 ARCHITECTURE=$5 MAINTAINER=$6
BUILT=$(realpath "$1")
nfpm=$(realpath "$3")
mkdir -p "$OUT"
out=$(realpath "$OUT")
cd "$(dirname "$0")/../.."

# What the program makes of its flags: completions for three shells and a man page for each command.
share=$BUILT/share
program=$BUILT/gpuledger/gpuledger
rm -rf "$share"
mkdir -p "$share"/{bash-completion/completions,fish/vendor_completions.d,man/man1}
"$program" completion bash > "$share/bash-completion/completions/gpuledger"
# Debian's zsh looks for it in another directory than others: nfpm.yaml.
"$program" completion zsh > "$BUILT/_gpuledger"
"$program" completion fish > "$share/fish/vendor_completions.d/gpuledger.fish"
"$program" man --output "$share/man/man1"
gzip -9n "$share"/man/man1/*

for format in deb rpm; do "$nfpm" package --config deploy/packages/nfpm.yaml --packager $format --target "$out" >/dev/null; done
