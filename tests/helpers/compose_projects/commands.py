"""Commands, variables, users, images and rights."""

from tests.helpers.compose_projects.project import Project

COMMANDS = {
    "quotes of a command's text": Project(
        compose="""\
services:
  main:
    depends_on:
      one: {condition: service_completed_successfully}
      two: {condition: service_completed_successfully}
  one: {image: BASE, command: "printf '[%s]\\\\n' \\"a  b\\" 'c \\"d\\"' e\\\\ f '' '#x' ;"}
  two:
    image: BASE
    entrypoint: printf '[%s]\\n' fixed
    command: "x 'y z'"
""",
    ),
    "an entrypoint that is emptied keeps the image's command": Project(
        files={
            "wrapped/Dockerfile": """\
FROM BASE
ENTRYPOINT ["echo", "never"]
CMD ["sh", "-c", "echo of the image; exec sleep 1000"]
"""
        },
        compose="""\
services:
  main: {}
  emptied: {build: wrapped, entrypoint: []}
""",
        looks={"emptied": "pgrep -xc sleep"},
    ),
    "a command that is empty is the image's": Project(
        files={
            "wrapped/Dockerfile": """\
FROM BASE
ENTRYPOINT ["sh", "-c", "echo $0 $@; exec sleep 1000"]
CMD ["of", "the image"]
"""
        },
        compose="""\
services:
  main: {}
  list: {build: wrapped, command: []}
  text: {build: wrapped, command: ""}
  nothing: {build: wrapped, command: null, entrypoint: null}
""",
    ),
    "a command that is a script of the task": Project(
        files={
            "run.sh": "#!/bin/sh\necho run by $0 with $*\nexec sleep 1000\n",
            "bin/tool": "#!/bin/sh\necho a tool\n",
        },
        compose="""\
services:
  main: {}
  script:
    image: BASE
    command: [/opt/run.sh, a, "b c"]
    volumes: ["./run.sh:/opt/run.sh:ro", "./bin:/opt/bin:ro"]
    environment: {PATH: "/opt/bin:/usr/bin:/bin"}
""",
        looks={"script": "tool; stat -c '%a %u:%g %n' /opt/run.sh /opt/bin /opt/bin/tool"},
    ),
    "values of variables": Project(
        toml='[environment.env]\nGIVEN = "of the task"\n',
        compose="""\
services:
  main: {environment: {LINES: "one\\ntwo", GIVEN: }}
  mapped:
    image: BASE
    command: sleep 1000
    environment:
      LINES: |
        first
        second
      EQUALS: "a=b=c"
      SPACES: "  two  "
      QUOTES: "\\"double\\" 'single'"
      LETTERS: "ü→"
      DOLLARS: "$$$$ $$x"
      BACKSLASH: 'a\\nb'
      GIVEN:
      ABSENT_ANYWHERE:
      FLOAT: 1.50
      DATE: 2020-01-02
      NOTHING: ~
  listed: {image: BASE, command: sleep 1000, environment: [GIVEN, ABSENT_ANYWHERE, "SPACES=  two  ", "EMPTY="]}
""",
        looks=dict.fromkeys(
            ("main", "mapped", "listed"), "env | grep -vE '^(PATH|HOSTNAME|PWD|HOME|SHLVL|_|OLDPWD)=' | sort"
        ),
    ),
    "output without an end of line": Project(
        compose="""\
services:
  main: {depends_on: {said: {condition: service_completed_successfully}}}
  said: {image: BASE, command: ["printf", "%s", "ünï→ without an end"]}
  spoken: {image: BASE, command: ["bash", "-c", "echo to-error >&2; printf 'a\\tb\\r\\n'; exec sleep 1000"]}
""",
    ),
    "a service's processes": Project(
        compose="""\
services:
  main: {}
  background: {image: BASE, command: "sh -c 'sleep 1001 & sleep 1002 & wait'"}
  empty: {image: BASE, command: [cat], stdin_open: true, init: true}
""",
        looks={
            "background": "pgrep -xc sleep; ulimit -n >/dev/null && umask",
            "empty": "pgrep -xc cat; test -t 0; echo $?",
        },
    ),
    "main has a command of its own": Project(
        compose="""\
services:
  main:
    entrypoint: [sh, -c]
    command: ["echo started as $$(id -un) in $$PWD >/tmp/started; exec sleep 1000"]
    user: games
    working_dir: /var/tmp
    restart: always
    init: false
    stop_signal: SIGINT
""",
        looks={"main": "cat /tmp/started; id -un; pwd", "root@main": "id -un"},
        verify="[ -s /tmp/started ]",
    ),
    "users and groups": Project(
        compose="""\
services:
  main: {}
  both: {image: BASE, user: "33:audio", command: sleep 1000}
  named: {image: BASE, user: "nobody:nogroup", command: sleep 1000, working_dir: /made/by/whom}
  root: {image: BASE, user: root, command: sleep 1000}
  zero: {image: BASE, user: "0:0", command: sleep 1000, environment: {HOME: /elsewhere}}
""",
        looks={
            **dict.fromkeys(("both", "root", "zero"), 'id; echo "$HOME"; pwd'),
            "named": "id; pwd; stat -c '%U:%G %a' . ..; touch x",
            "games@root": 'id; echo "$HOME"',
            "33:audio@root": "id",
        },
    ),
}

IMAGES = {
    "a build in its short form": Project(
        files={
            "app/Dockerfile": """\
FROM BASE
ARG GIVEN
ARG UNDEFINED=own
COPY . /app/
RUN echo $GIVEN $UNDEFINED >/args
CMD sleep 1000
""",
            "app/.dockerignore": "*.log\n!kept.log\n",
            "app/a.txt": "a\n",
            "app/b.log": "b\n",
            "app/kept.log": "kept\n",
        },
        toml='[environment.env]\nGIVEN = "of the task"\n',
        compose="""\
services:
  main: {}
  short: {build: ./app}
  long: {build: {context: app, args: [GIVEN, UNDEFINED], labels: {a: b}, pull: false, tags: ["own-tag:1"]}}
""",
        looks={"short": "ls -A /app; cat /args", "long": "cat /args"},
    ),
    "a Dockerfile beside its context": Project(
        files={
            "docker/app.Dockerfile": """\
FROM BASE AS base
COPY a.txt /a.txt
FROM base AS prod
RUN echo prod >/stage
FROM base AS dev
RUN echo dev >/stage
CMD sleep 1000
""",
            "src/a.txt": "a\n",
        },
        compose="""\
services:
  main: {}
  dev: {build: {context: src, dockerfile: ../docker/app.Dockerfile}}
  prod: {build: {context: src, dockerfile: ../docker/app.Dockerfile, target: prod}, command: sleep 1000}
""",
        looks={"dev": "cat /a.txt /stage", "prod": "cat /a.txt /stage"},
    ),
    "main is built otherwise": Project(
        files={
            "Dockerfile": """\
FROM BASE AS one
ARG WORD=default
RUN echo one $WORD >/stage
FROM one AS two
RUN echo two >/stage
"""
        },
        compose="""\
services:
  main: {build: {target: one, args: {WORD: "of main"}}, environment: {A: b}}
""",
        looks={"main": "cat /stage; echo $A"},
    ),
    "main's image is of another service": Project(
        files={"app/Dockerfile": "FROM BASE\nRUN echo app >/app.txt\nWORKDIR /srv\nCMD sleep 1000\n"},
        compose="""\
services:
  main: {image: own-name-of-app, depends_on: [app]}
  app: {image: own-name-of-app, build: app}
""",
        looks={"main": "cat /app.txt; pwd", "app": "cat /app.txt"},
    ),
    "an image's settings and the service's": Project(
        files={
            "set/Dockerfile": """\
FROM BASE
ENV A=image B=image
USER games
WORKDIR /var/tmp
VOLUME /data
LABEL a=b
EXPOSE 80
SHELL ["/bin/bash", "-c"]
STOPSIGNAL SIGINT
CMD echo "$0 $BASH_VERSION" | cut -c -9; exec sleep 1000
"""
        },
        compose="""\
services:
  main: {}
  image: {build: set}
  own: {build: set, user: root, working_dir: /srv, environment: {B: service, C: service}}
""",
        looks=dict.fromkeys(("image", "own"), "id -un; pwd; echo $A $B $C; stat -c '%U %a' /data"),
    ),
    "rights that are given up": Project(
        compose="""\
services:
  main: {cap_drop: [NET_RAW], security_opt: ["no-new-privileges=true"]}
  all: {image: BASE, command: sleep 1000, cap_drop: [all], cap_add: [cap_chown, NET_BIND_SERVICE]}
  open: {image: BASE, command: sleep 1000, security_opt: ["no-new-privileges:false"], cap_add: [CHOWN]}
""",
        looks={
            "main": "grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status | cut -c 17-",
            "all": "grep -E '^(CapBnd|CapEff)' /proc/self/status | cut -c 17-; "
            "touch /x && chown 5 /x && echo ok; su games -c id",
            "open": "grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status | cut -c 17-",
        },
    ),
}
