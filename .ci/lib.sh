# Shared by the scripts beside it.

step() {
    echo
    echo "== $1 ($((SECONDS / 60)):$(printf %02d $((SECONDS % 60))))"
}

# Sets PYTHON to an interpreter that has what tools/requirements.txt names.
python_with_keras() {
    local venv=target/venv
    if ! cmp -s tools/requirements.txt "$venv/installed.txt"; then
        python3 -m venv --clear "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r tools/requirements.txt
        cp tools/requirements.txt "$venv/installed.txt"
    fi
    PYTHON=$venv/bin/python
    export TF_CPP_MIN_LOG_LEVEL=3
}
