"""The document itself: its parts, their merging and their variables."""

from tests.helpers.compose_projects.project import EXTRA, Project

DOCUMENT = {
    "the form that older tasks have": Project(
        files={"Dockerfile": "FROM BASE\nRUN echo built >/built\nWORKDIR /app\n"},
        compose="""\
version: "3"
services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${TEST_DIR:-/tests}"]
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - ${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}
    deploy: {resources: {limits: {cpus: "1", memory: 1G}}}
""",
        solve="echo solved >/logs/agent/note",
        looks={"main": 'cat /built; pwd; echo "$TEST_DIR"; cat /logs/agent/note'},
        verify="[ -e /built ]",
    ),
    "only the task's own file is read": Project(
        files={
            "docker-compose.override.yaml": """\
services:
  main: {environment: {A: override}}
  extra: {image: BASE, command: sleep 1000}
""",
            "compose.yaml": "services: {main: {environment: {A: compose}}}\n",
            ".env": "FROM_DOT_ENV=dot\nexport OTHER='x y'\n",
        },
        compose="""\
services:
  main: {environment: {A: own, B: "${FROM_DOT_ENV}", C: "${OTHER}", D: "${COMPOSE_PROJECT_NAME}"}}
""",
        looks={"main": 'echo "$A $B $C ${D%%__*}"; env | grep FROM_DOT', "extra": "true"},
    ),
    "parts that are replaced and taken away": Project(
        files={
            "other.yaml": """\
services:
  base:
    image: BASE
    command: sleep 1000
    user: games
    environment: {A: base, B: base}
    cap_drop: [ALL]
    tmpfs: [/one]
"""
        },
        compose="""\
services:
  main: {command: !override [sh, -c, "echo own >/own; sleep 1000"]}
  child:
    extends: {file: other.yaml, service: base}
    user: !reset null
    environment: !override {C: child}
    tmpfs: [/two]
""",
        looks={"main": "cat /own", "child": "id -un; env | grep -E '^[A-C]='; stat -fc %T /one /two"},
    ),
    "files that are included with their own variables": Project(
        files={
            "part/part.yaml": """\
services:
  included:
    build: .
    environment: {WORD: "${WORD:-default}", PLACE: $PLACE}
    volumes: ["./here.txt:/here.txt:ro"]
""",
            "part/part.env": "WORD=of the part\n",
            "part/Dockerfile": "FROM BASE\nCOPY here.txt /copied\nCMD sleep 1000\n",
            "part/here.txt": "here\n",
        },
        toml='[environment.env]\nPLACE = "of the task"\n',
        compose="""\
include: [{path: part/part.yaml, project_directory: part, env_file: part/part.env}]
services:
  main: {depends_on: [included]}
""",
        looks={"included": 'echo "$WORD, $PLACE"; cat /here.txt /copied'},
    ),
    "anchors with merges": Project(
        compose="""\
x-logging: &logging {logging: {driver: json-file, options: {max-size: 1m}}}
x-app: &app
  <<: *logging
  image: BASE
  command: &wait [sleep, "1000"]
  environment: &env {LEVEL: low, BOTH: app}
  labels: [a=b]
services:
  main: {environment: {<<: *env, BOTH: main}}
  one: {<<: *app, environment: {<<: *env, ONE: 1}}
  two: {<<: *app, command: [sh, -c, "echo $$LEVEL; exec sleep 1000"]}
""",
        looks=dict.fromkeys(("main", "one", "two"), "env | grep -E '^(LEVEL|BOTH|ONE)=' | sort"),
    ),
    "profiles": Project(
        toml='[environment.env]\nCOMPOSE_PROFILES = "first,second"\n',
        compose="""\
services:
  main: {depends_on: {third: {condition: service_started, required: false}}}
  one: {image: BASE, command: sleep 1000, profiles: [first]}
  two: {image: BASE, command: sleep 1000, profiles: [other, second], depends_on: [one]}
  third: {image: no-such-image, profiles: [third]}
""",
        looks={"main": "for name in one two third; do getent hosts $name >/dev/null && echo $name; done"},
    ),
    "a file of the run comes after the task's": Project(
        files={
            EXTRA: "services:\n  main: {environment: {B: run, C: run}}\n  one: {environment: {B: run}}\n"
            "  two: {image: BASE, command: sleep 1000, network_mode: 'service:one'}\n"
        },
        compose="""\
services:
  main: {environment: {A: task, B: task}}
  one: {image: BASE, command: sleep 1000, environment: {A: task, B: task}}
""",
        looks={**dict.fromkeys(("main", "one"), "env | grep -E '^[A-C]=' | sort"), "two": "getent hosts main | wc -l"},
    ),
    "no service beside main": Project(
        compose="services: {}\nvolumes: {unused: }\nnetworks: {unused: }\n", looks={"main": "pwd; id -un"}
    ),
    "keys that change nothing": Project(
        compose="""\
name: own_name
services:
  main: {labels: {a: b}, oom_score_adj: 100, logging: {driver: json-file}}
  many:
    image: BASE
    command: sleep 1000
    labels: ["a=b"]
    attach: false
    cpu_shares: 512
    memswap_limit: 256m
    mem_limit: 128m
    oom_kill_disable: false
    pull_policy: if_not_present
    stop_signal: SIGINT
    pids_limit: -1
    platform: linux
    privileged: false
    scale: 1
    deploy: {mode: replicated, replicas: 1, labels: {a: b}, resources: {reservations: {cpus: "0.1"}}}
    develop: {watch: [{path: ., action: rebuild}]}
""",
        looks={"many": "echo runs", "main": "getent hosts many | wc -l"},
    ),
}
