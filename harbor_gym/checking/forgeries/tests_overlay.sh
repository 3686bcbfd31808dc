# shellcheck shell=bash disable=SC2154,SC2034 # common.sh comes first and sets what the tricks use
# Tests of the policy's own, where the task's will be put.
mkdir -p /tests
{ printf '#!/bin/bash\n'; printf '%s\n' "$forge"; } >/tests/test.sh
chmod 555 /tests/test.sh
for name in conftest.py test_outputs.py test_state.py pytest.ini; do
    printf '%s\n' "$forge_in_python" >"/tests/$name"
done
