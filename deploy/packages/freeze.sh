#!/usr/bin/env bash
# Make executables that need no Python: the folder OUT/gpuledger (form `onedir`) and the file OUT/gpuledger-onefile.
#
#   freeze.sh PYTHON OUT [FORM...]      both forms by default. PYTHON has a shared libpython, as Debian's with libpython3.11
#
# They run where glibc is not older than that of PYTHON: freeze_for_old_glibc.sh makes those of a release.
set -euo pipefail
python=$1
mkdir -p "$2"
out=$(realpath "$2")
forms=("${@:3}")
[ ${#forms[@]} != 0 ] || forms=(onedir onefile)
checkout=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
install() { "$work/venv/bin/pip" install -q --disable-pip-version-check --root-user-action=ignore "$@"; }
install --require-hashes --no-deps --only-binary :all: -r "$checkout/requirements.lock"
install --require-hashes --no-deps --only-binary :all: -r "$checkout/requirements-release.lock"
# Commands are imported by name, and pages, scenarios and schemas are read as data of the package.
for form in "${forms[@]}"; do
  name=gpuledger
  [ "$form" = onedir ] || name=gpuledger-$form
  (cd "$work" && PYTHONPATH=$checkout/src PYTHONDONTWRITEBYTECODE=1 venv/bin/pyinstaller --noconfirm --log-level ERROR \
    --strip --name "$name" "--$form" --collect-submodules gpuledger --collect-data gpuledger \
    "$checkout/src/gpuledger/__main__.py")
  rm -rf "${out:?}/$name"
  mv "$work/dist/$name" "$out/$name"
done
