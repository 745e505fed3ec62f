#!/usr/bin/env bash
# Make or mend the virtual environment: environment.sh REQUIREMENTS_FILE VENV_FOLDER [PYTHON]
# Safe to run again; what is already there is not downloaded twice.
set -euo pipefail
requirements=$1
venv=$2
python=${3:-}

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [ -n "$python" ]; then
  fits "$python" || { echo "PYTHON=$python is not a Python 3.11 or newer." >&2; exit 1; }
else
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if fits "$name"; then python=$name; break; fi
  done
  if [ -z "$python" ]; then
    echo "This needs Python 3.11 or newer; python3 here is: $(python3 --version 2>&1 || true)" >&2
    echo "Install one, or name it: make book PYTHON=/path/to/python3.12" >&2
    exit 1
  fi
fi

if [ -e "$venv" ] && ! fits "$venv/bin/python"; then
  echo "The environment in $venv no longer works; making it again."
  rm -rf "$venv"
fi
if [ ! -e "$venv" ]; then
  echo "Making the environment in $venv with $("$python" --version)"
  if ! "$python" -m venv "$venv"; then
    rm -rf "$venv"
    echo "Could not make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv" >&2
    exit 1
  fi
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "Installing $requirements (the first time this downloads PyTorch and CuTe-DSL: some gigabytes)"
# In an environment that is there already, what is already satisfied would fill the screen.
if ! "$venv/bin/python" -m pip install --requirement "$requirements" | (grep --line-buffered -v '^Requirement already satisfied' || true); then
  echo "Installing $requirements failed: the reason stands above. What was done is kept; run the same command again." >&2
  exit 1
fi
# The build tool of pyproject.toml is among what was just installed.
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
