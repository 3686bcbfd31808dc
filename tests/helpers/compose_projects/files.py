"""Mounts, volumes, memory, secrets and configs."""

from tests.helpers.compose_projects.project import Project

FILES = {
    "a task's files that are mounted": Project(
        files={"conf/a.txt": "a\n", "conf/deep/b.txt": "b\n", "single.txt": "single\n"},
        compose="""\
services:
  main: {volumes: ["./conf:/conf"]}
  reader: {image: BASE, command: sleep 1000, volumes: ["./conf:/conf:ro,z", "./single.txt:/etc/single:cached"]}
  deep:
    image: BASE
    command: sleep 1000
    volumes: [{type: bind, source: ./conf/deep, target: /deep, bind: {propagation: rprivate}}]
""",
        solve="echo written >/conf/new; rm /conf/a.txt",
        looks={
            "reader": "ls /conf; cat /conf/new; touch /conf/x; echo more >>/etc/single; cat /etc/single",
            "deep": "ls /deep; touch /deep/x && echo ok",
            "main": "ls /conf /conf/deep",
        },
    ),
    "a directory, all of the task and one file": Project(
        files={"conf/deep/a.txt": "a\n", "conf/b.txt": "b\n"},
        compose="""\
services:
  main: {volumes: [".:/task", "./conf/b.txt:/etc/b"]}
  one: {image: BASE, command: sleep 1000, volumes: ["./conf/deep:/deep", "./conf/b.txt:/deep/inner/b"]}
  two: {image: BASE, command: sleep 1000, volumes: ["./conf:/conf"], working_dir: /conf/deep}
""",
        solve="echo more >>/task/conf/deep/a.txt; echo more >>/etc/b",
        looks={
            "one": "cat /deep/a.txt /deep/inner/b; echo one >/deep/one",
            "two": "cat a.txt ../b.txt; ls; touch /conf/two",
            "main": "ls /task /task/conf /task/conf/deep; cat /task/conf/b.txt",
        },
        verify="[ $(wc -l </task/conf/b.txt) = 2 ]",
    ),
    "a socket in a volume": Project(
        compose="""\
services:
  main: {depends_on: {server: {condition: service_healthy}}, volumes: ["run:/run/server"]}
  server:
    image: BASE
    user: games
    command:
      - perl
      - -MIO::Socket::UNIX
      - -e
      - $$l = IO::Socket::UNIX->new(Local => "/run/server/s", Listen => 9) or die; print {$$l->accept} "word\\n" while 1
    healthcheck: {test: [CMD, test, -S, /run/server/s], interval: 300ms, retries: 200}
    depends_on: {seed: {condition: service_completed_successfully}}
    volumes: ["run:/run/server"]
  seed: {image: BASE, command: chown games /run/server, volumes: ["run:/run/server"]}
volumes: {run: }
""",
        looks={"main": "perl -MIO::Socket::UNIX -e 'print readline(IO::Socket::UNIX->new(Peer => q(/run/server/s)))'"},
    ),
    "a volume that is read-only is filled": Project(
        files={"full/Dockerfile": "FROM BASE\nRUN mkdir /data && echo of-image >/data/file\nCMD sleep 1000\n"},
        compose="""\
services:
  main: {depends_on: [full], volumes: ["data:/data"]}
  full: {build: full, volumes: ["data:/data:ro"]}
volumes: {data: }
""",
        looks={"full": "cat /data/file; touch /data/x", "main": "cat /data/file; touch /data/y && echo ok"},
    ),
    "a missing directory is made": Project(
        compose="""\
services:
  main: {volumes: ["./made:/made"]}
  writer: {image: BASE, command: "sh -c 'echo written >/out/file; exec sleep 1000'", volumes: ["./made:/out"]}
""",
        looks={"main": "until [ -s /made/file ]; do sleep 0.2; done; cat /made/file"},
    ),
    "a missing directory that is not to be made": Project(
        compose="""\
services:
  main: {}
  writer:
    image: BASE
    command: sleep 1000
    volumes: [{type: bind, source: ./absent, target: /x, bind: {create_host_path: false}}]
""",
        local="'writer'.*absent",
        docker="absent",
    ),
    "volumes with and without names": Project(
        compose="""\
services:
  main: {volumes: ["kept:/kept", {type: volume, source: kept, target: /again, read_only: true}]}
  one: {image: BASE, command: sleep 1000, volumes: [/data, "kept:/kept/"]}
  two: {image: BASE, command: sleep 1000, volumes: [/data]}
volumes: {kept: {name: "${COMPOSE_PROJECT_NAME}-own", labels: {a: b}}}
""",
        solve="echo kept >/kept/file; touch /again/x; true",
        looks={
            "one": "touch /data/of-one; ls /data /kept",
            "two": "ls -A /data",
            "main": "ls /again; stat -c '%U:%G %a' /kept",
        },
    ),
    "owners and modes in a volume": Project(
        compose="""\
services:
  main: {volumes: ["shared:/shared"]}
  owner:
    image: BASE
    command:
      - sh
      - -c
      - |
        mkdir -m 750 /shared/own
        echo x >/shared/own/file
        chown -R 33:44 /shared/own
        chmod 4755 /shared/own/file
        touch /done
        exec sleep 1000
    healthcheck: {test: test -e /done, interval: 300ms}
    volumes: ["shared:/shared"]
  other:
    image: BASE
    user: "33"
    command: sleep 1000
    volumes: ["shared:/shared"]
    depends_on: {owner: {condition: service_healthy}}
volumes: {shared: }
""",
        looks={
            "main": "stat -c '%u:%g %a %n' /shared /shared/own /shared/own/file",
            "other": "cat /shared/own/file; touch /shared/x; touch /shared/own/y && stat -c '%u:%g' /shared/own/y",
        },
    ),
    "a volume is filled by the first image that has files": Project(
        files={
            "full/Dockerfile": """\
FROM BASE
RUN mkdir -p /data/deep && echo of-image >/data/deep/file && ln -s deep/file /data/link
CMD sleep 1000
"""
        },
        compose="""\
services:
  main: {volumes: ["data:/data"], depends_on: [full]}
  full: {build: ./full, volumes: ["data:/data"]}
volumes: {data: }
""",
        looks={"main": "cat /data/link; find /data | sort"},
        verify="grep -q of-image /data/deep/file",
    ),
    "memory in its forms": Project(
        compose="""\
services:
  main: {tmpfs: [/short], shm_size: 4m}
  typed:
    image: BASE
    command: sleep 1000
    shm_size: "8388608"
    volumes:
      - {type: tmpfs, target: /sized, tmpfs: {size: 2m, mode: 0o700}}
      - {type: tmpfs, target: /plain}
""",
        looks={
            "main": "stat -c '%a %u:%g' /short; df --output=size /dev/shm",
            "typed": "stat -c '%a %u:%g' /sized /plain; df --output=size /sized /dev/shm; "
            "cp /bin/true /plain; /plain/true",
        },
    ),
    "a root that is read-only": Project(
        compose="""\
services:
  main: {}
  closed:
    image: BASE
    command: sh -c 'echo x >/x || echo refused; exec sleep 1000'
    read_only: true
    tmpfs: [/tmp, /run]
    volumes: ["data:/data"]
volumes: {data: }
""",
        looks={
            "closed": "touch /tmp/x /run/x /data/x /dev/shm/x && echo ok; "
            "touch /etc/x /var/x; echo x >/etc/hosts || echo no; mkdir /new"
        },
    ),
    "secrets and configs": Project(
        files={"word.txt": "a word\n", "conf.txt": "of a file\n"},
        toml='[environment.env]\nGIVEN = "of the task"\n',
        compose="""\
services:
  main: {secrets: [word], configs: [text]}
  app:
    image: BASE
    command: sleep 1000
    user: games
    secrets: [{source: word, target: /etc/app/word}, other]
    configs: [{source: text, target: /etc/app/text}, filed]
secrets: {word: {file: ./word.txt}, other: {file: word.txt}}
configs: {text: {content: "GIVEN is ${GIVEN}"}, filed: {file: ./conf.txt}}
""",
        looks={
            "main": "cat /run/secrets/word /text",
            "app": "cat /etc/app/word /etc/app/text /run/secrets/other /filed; touch /run/secrets/x",
        },
    ),
}
