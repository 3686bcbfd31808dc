#!/usr/bin/env bash
# Tests what touches Harbor on the newest Harbor that pyproject.toml allows, in an environment of its own. .venv has an older
# one, which every extra there can be installed beside.
#   test.sh [PYTEST'S FLAGS]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

environment=$(.ci/environment.sh harbor_newest)
unset HARBOR_GYM_REQUIRE # frameworks have environments of their own, and each engine's tests run in .venv
# Left out are the files of the folders named in part, no test of which runs code of Harbor, and further signals that stop
# the same trial.
stopped=tests/unit/checking/test_checks.py::test_a_check_that_is_stopped_prints_what_it_has
exec "$environment/bin/python" -m pytest -n 2 --max-worker-restart 0 -m 'not slow' \
  tests/unit/episode tests/unit/tasks tests/unit/formats/test_{actions,beside_harbor}.py \
  tests/unit/formats/test_actions_formats.py::test_the_prompts_own_example_is_read_without_complaint \
  tests/unit/checking/test_checks.py --deselect "${stopped}[1]" --deselect "${stopped}[15]" \
  tests/unit/rollouts/test_{batch_sampler,chat_episodes,outcomes_table}.py \
  tests/unit/gateway/test_relay.py tests/unit/runtime/{test_harbor_versions,test_portal}.py \
  tests/unit/sandboxes/{test_extensions,test_namespaced,apptainer/test_options}.py \
  tests/unit/testing/{test_fake_transfers,test_pytest_plugin}.py \
  tests/unit/adapters/test_harbor_agents.py \
  tests/contract/test_fidelity.py::test_one_task_with_nearly_every_declaration \
  tests/contract/test_outcomes.py tests/contract/test_same_episode.py tests/contract/test_fidelity_steps.py \
  tests/integration/adapters/test_harbor_rollouts.py tests/integration/adapters/test_harbor_server.py \
  tests/integration/adapters/test_guarded_grading.py \
  tests/integration/episode/test_mcp_tools.py::test_a_service_gets_headers_that_no_policy_sees \
  tests/integration/gateway/test_gateway_trials.py \
  tests/benchmarks/test_bench_gateway.py::test_harbors_relay_is_measured_beside_them \
  tests/integration/episode/test_pristine_view.py::test_no_program_of_the_sandbox_runs_between_the_clean_up_and_the_verifier "$@"
