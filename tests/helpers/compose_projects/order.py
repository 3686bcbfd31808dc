"""The order of start, restarts, ends and health checks."""

from tests.helpers.compose_projects.project import ASK, Project

ORDER = {
    "a chain of steps": Project(
        compose="""\
version: "3.8"
services:
  main: {depends_on: {third: {condition: service_completed_successfully}}, volumes: ["shared:/shared"]}
  third:
    image: BASE
    command: sh -c 'echo third >>/shared/order'
    depends_on: {second: {condition: service_completed_successfully}}
    volumes: ["shared:/shared"]
  second:
    image: BASE
    command: sh -c 'sleep 0.3; echo second >>/shared/order'
    depends_on: {first: {condition: service_completed_successfully}}
    volumes: ["shared:/shared"]
  first: {image: BASE, command: "sh -c 'sleep 0.6; echo first >>/shared/order'", volumes: ["shared:/shared"]}
volumes: {shared: }
""",
        looks={"main": "cat /shared/order"},
        verify="[ $(wc -l </shared/order) = 3 ]",
    ),
    "an optional dependency that is there is waited for": Project(
        compose="""\
services:
  main:
    depends_on:
      seed: {condition: service_completed_successfully, required: false}
      late: {condition: service_healthy, required: false}
    volumes: ["shared:/shared"]
    command: [sh, -c, "cat /shared/* >/seen; exec sleep 1000"]
  seed: {image: BASE, command: "sh -c 'sleep 1; echo seeded >/shared/seed'", volumes: ["shared:/shared"]}
  late:
    image: BASE
    command: sh -c 'sleep 1.5; echo late >/shared/late; exec sleep 1000'
    healthcheck: {test: [CMD, test, -e, /shared/late], interval: 300ms, retries: 200}
    volumes: ["shared:/shared"]
volumes: {shared: }
""",
        looks={"main": "cat /seen"},
    ),
    "an optional dependency that fails": Project(
        compose="""\
services:
  main: {depends_on: {bad: {condition: service_completed_successfully, required: false}}}
  bad: {image: BASE, command: "sh -c 'exit 3'"}
""",
        local="'bad' did not (come up|complete).*status 3",
        docker="exit 3",
    ),
    "an optional dependency without a check": Project(
        compose="""\
services:
  main: {depends_on: {plain: {condition: service_healthy, required: false}}}
  plain: {image: BASE, command: sleep 1000}
""",
        looks={"plain": "echo runs"},
    ),
    "services that wait for main": Project(
        compose="""\
services:
  main:
    command: [sh, -c, "sleep 0.5; echo main >>/shared/order; exec sleep 1000"]
    healthcheck: {test: [CMD, test, -e, /shared/order], interval: 300ms, retries: 200}
    volumes: ["shared:/shared"]
  after:
    image: BASE
    command: sh -c 'echo after >>/shared/order; exec sleep 1000'
    depends_on: {main: {condition: service_healthy}}
    volumes: ["shared:/shared"]
  beside: {image: BASE, command: sleep 1000, depends_on: [main]}
volumes: {shared: }
""",
        looks={"main": "cat /shared/order", "beside": "echo here"},
    ),
    "a seed, a server and a client": Project(
        compose="""\
services:
  main: {depends_on: {server: {condition: service_healthy}}, volumes: ["data:/data"]}
  server:
    image: BASE
    command: ["bash", "-c", "SERVE $$(cat /data/word)"]
    depends_on: {seed: {condition: service_completed_successfully}}
    healthcheck: {test: [CMD, bash, -c, ": </dev/tcp/127.0.0.1/80"], interval: 300ms, retries: 200}
    volumes: ["data:/data:ro"]
  seed: {image: BASE, command: "sh -c 'echo seeded >/data/word'", volumes: ["data:/data"]}
volumes: {data: }
""",
        solve=f"{ASK} asked server >/data/answer",
        looks={"main": "cat /data/*", "server": "touch /data/x"},
        verify='[ "$(cat /data/answer)" = seeded ]',
    ),
    "a restart's limit is enough": Project(
        compose="""\
services:
  main: {volumes: ["shared:/shared"]}
  tries:
    image: BASE
    command: sh -c 'echo try | tee -a /shared/tries; [ $$(wc -l </shared/tries) -ge 3 ] || exit 7; exec sleep 1000'
    restart: on-failure:2
    volumes: ["shared:/shared"]
volumes: {shared: }
""",
        solve="until [ $(wc -l </shared/tries) -ge 3 ]; do sleep 0.2; done",
        looks={"main": "cat /shared/tries"},
    ),
    "files of a run are there after its restart": Project(
        compose="""\
services:
  main: {volumes: ["shared:/shared"]}
  again:
    image: BASE
    command: sh -c 'echo run >>/tmp/runs; [ $$(wc -l </tmp/runs) -ge 2 ] && touch /shared/second && exec sleep 1000'
    restart: always
    volumes: ["shared:/shared"]
volumes: {shared: }
""",
        solve="until [ -e /shared/second ]; do sleep 0.2; done; sleep 1",
        looks={"again": "cat /tmp/runs"},
    ),
    "restart policies of a deployment": Project(
        compose="""\
services:
  main: {depends_on: {once: {condition: service_completed_successfully}}, volumes: ["shared:/shared"]}
  once:
    image: BASE
    command: sh -c 'echo once >>/shared/once'
    deploy: {restart_policy: {max_attempts: 3}}
    volumes: ["shared:/shared"]
  again:
    image: BASE
    command: sh -c 'echo again >>/shared/again; [ $$(wc -l </shared/again) -ge 2 ] && exec sleep 1000'
    deploy: {mode: global, restart_policy: {condition: unless-stopped}}
    volumes: ["shared:/shared"]
volumes: {shared: }
""",
        solve="until [ $(wc -l </shared/again) -ge 2 ]; do sleep 0.2; done",
        looks={"main": "cat /shared/*"},
    ),
    "later ends": Project(
        compose="""\
x-waiting: &waiting {image: BASE, volumes: ["shared:/shared"]}
services:
  main: {volumes: ["shared:/shared"]}
  five: {<<: *waiting, command: "sh -c 'until [ -e /shared/go ]; do sleep 0.1; done; echo left; exit 5'"}
  well: {<<: *waiting, command: "sh -c 'until [ -e /shared/go ]; do sleep 0.1; done'"}
  killed: {<<: *waiting, command: "sh -c 'until [ -e /shared/go ]; do sleep 0.1; done; timeout -s KILL 0.1 sleep 9'"}
volumes: {shared: }
""",
        solve="touch /shared/go",
        ends=("five", "well", "killed"),
        looks={"main": "ls /shared"},
    ),
}

HEALTH = {
    "what a check is run as": Project(
        compose="""\
services:
  main: {depends_on: {listed: {condition: service_healthy}, text: {condition: service_healthy}}}
  listed:
    image: BASE
    user: games
    working_dir: /usr
    environment: {WORD: "of the service"}
    command: sleep 1000
    healthcheck: {test: [CMD, sh, -c, 'echo "$$(id -un) $$PWD $$WORD" >/tmp/seen'], interval: 300ms}
  text:
    image: BASE
    environment: {WORD: "of the service"}
    command: sleep 1000
    healthcheck: {test: [CMD-SHELL, 'echo "$$WORD" "a  b" >/tmp/seen && test -s /tmp/seen'], interval: 300ms}
""",
        looks={"listed": "cat /tmp/seen", "text": "cat /tmp/seen"},
    ),
    "failures of the start period do not count": Project(
        compose="""\
services:
  main: {depends_on: {slow: {condition: service_healthy}}}
  slow:
    image: BASE
    command: sh -c 'sleep 2; touch /ready; exec sleep 1000'
    healthcheck: {test: test -e /ready, interval: 300ms, start_period: 20s, retries: 1}
""",
        looks={"slow": "ls /ready"},
    ),
    "a check of the image with the service's times": Project(
        files={
            "checked/Dockerfile": "FROM BASE\nHEALTHCHECK --interval=1h --retries=1 CMD test -e /ready\n"
            'CMD ["sh", "-c", "sleep 1; touch /ready; exec sleep 1000"]\n'
        },
        compose="""\
services:
  main: {depends_on: {checked: {condition: service_healthy}}}
  checked: {build: checked, healthcheck: {interval: 400ms, retries: 200}}
""",
        looks={"checked": "ls /ready"},
    ),
    "an image's check that is switched off": Project(
        files={"checked/Dockerfile": "FROM BASE\nHEALTHCHECK --interval=300ms CMD false\nCMD sleep 1000\n"},
        compose="""\
services:
  main: {}
  checked: {build: checked, healthcheck: {disable: true}}
""",
        docker="no healthcheck configured",
        looks={"checked": "echo runs"},
    ),
    "an unhealthy dependency": Project(
        compose="""\
services:
  main: {depends_on: {sick: {condition: service_healthy}}}
  sick: {image: BASE, command: sleep 1000, healthcheck: {test: [CMD, "false"], interval: 100ms, retries: 2}}
""",
        local="'sick'.*failed 2 times in a row",
        docker="unhealthy",
    ),
}
