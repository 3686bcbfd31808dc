# ruff: noqa: E501  # a Dockerfile a line
"""Small Dockerfiles by subject, whose images of two builders are compared."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import batched

BASE = "debian:bookworm-slim"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile with its context."""

    text: str
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Path in the context → text; a path that ends in ``.tar`` is made an archive of one such file."""

    twin: str | None = None
    """The same in words that Docker's oldest supported builder reads, where it does not read ``text``."""

    directives: str = ""
    """Lines before FROM, of ``text`` alone where there is a twin."""

    modes: dict[str, int] = field(default_factory=dict[str, int])
    """Path in the context → mode."""

    links: dict[str, str] = field(default_factory=dict[str, str])
    """Path in the context → target of a symbolic link."""


ONE = """\
RUN useradd -m -u 1500 worker && groupadd -g 1600 crew && usermod -aG crew worker && mkdir /c
"""
"""The common beginning of the parts below."""

PARTS: dict[str, str] = {
    # --- WORKDIR, USER
    "workdirs that nothing uses": "WORKDIR /c/w1\nWORKDIR /c/w2\nWORKDIR deep/er\nWORKDIR /\n",
    "a workdir of a user": "USER worker\nWORKDIR /home/worker/a/b\nUSER root\n",
    "a workdir of a user, then COPY": "USER worker\nWORKDIR /home/worker/c\nCOPY one .\nUSER root\n",
    "a workdir of a user, then RUN": "USER worker\nWORKDIR /home/worker/d\nRUN echo x >x\nUSER root\n",
    "a workdir of root, then another user's RUN": "WORKDIR /c/rw\nUSER worker\nRUN id >/tmp/rw\nUSER root\n",
    "a workdir that is there": "RUN install -d -m 711 -o 7 -g 8 /c/there\nUSER worker\nWORKDIR /c/there\nUSER root\n",
    "a workdir with a variable": "ENV PLACE=/c/var\nWORKDIR $PLACE/${NONE:-sub}\n",
    "a workdir with a blank": "WORKDIR /c/a blank\nRUN pwd >here\n",
    "a user with a group": "USER worker:crew\nRUN id >/tmp/group\nUSER 0\n",
    "a user with other groups": "USER worker\nRUN id >/tmp/groups\nUSER root\n",
    "a user that is a number": "USER 4242\nRUN id >/tmp/number\nUSER root\n",
    "a workdir of a number": "USER 4242\nWORKDIR /c/number\nUSER root\n",
    "a workdir of numbers": "USER 4242:4343\nWORKDIR /c/numbers\nUSER root\n",
    "a high id": "RUN echo x >/c/high && chown 100001:197609 /c/high\nUSER 100001\nRUN id >/tmp/high\nUSER root\n",
    "a user from a variable": "ENV WHO=worker\nUSER $WHO\nWORKDIR /home/worker/of/who\nCOPY one .\nUSER root\n",
    "a workdir with dots": "WORKDIR /c/a/../dots/./b\nRUN pwd >where\nWORKDIR ..\nRUN pwd >where\n",
    "a workdir of a user that goes": "RUN useradd -m gone\nUSER gone\nWORKDIR /home/gone/x\nUSER root\nRUN userdel gone\n",
    # --- COPY
    "copy a file": "COPY one /c/copy/one\n",
    "copy to a directory": "COPY one /c/copied/\n",
    "copy several": "COPY one two /c/several/\n",
    "copy by pattern": "COPY *.txt /c/pattern/\n",
    "copy a directory": "COPY dir /c/dir\n",
    "copy a directory to one that is there": "RUN install -d -m 700 -o 5 /c/dir2\nCOPY dir /c/dir2\n",
    "copy with owner": "COPY --chown=worker:crew dir /c/owned\n",
    "copy with an owner's number": "COPY --chown=4242 one /c/owned-number\n",
    "copy with mode": "COPY --chmod=750 one /c/mode\n",
    "copy a name with blanks": 'COPY ["with blank", "/c/with blank"]\n',
    "copy a name with a dash": 'COPY -dash /c/dash\nCOPY ["-dash", "one", "/c/dashes/"]\n',
    "copy an odd name": "COPY odd /c/odd\n",
    "copy from a stage": "COPY --from=first /made /c/from/made\n",
    "copy from a stage by number": "COPY --from=0 /made /c/from/number\n",
    "copy from a stage in other letters": "COPY --from=FIRST /made /c/from/letters\n",
    "copy from a stage, with owners": "COPY --from=first /owned /c/from/owned\n",
    "copy from a stage, workdir": "COPY --from=first /work /c/from/work\n",
    "copy from an image": f"COPY --from={BASE} /etc/debian_version /c/from/image\n",
    "copy a link": "COPY links /c/links\n",
    "copy through a link": "RUN mkdir /c/real && ln -s real /c/alias\nCOPY one /c/alias/\n",
    "copy relative": "WORKDIR /c/relative\nCOPY one sub/\n",
    "copy what is ignored": "COPY ignoring /c/ignoring\n",
    "copy over": "COPY one /c/over\nCOPY two /c/over\n",
    "copy with a variable": "ARG WHICH=two\nCOPY $WHICH /c/variable\n",
    # --- ADD
    "add an archive": "ADD packed.tar /c/packed/\n",
    "add an archive with owner": "ADD --chown=worker packed.tar /c/packed-owned/\n",
    "copy an archive": "COPY packed.tar /c/packed.tar\n",
    "add a file": "ADD one /c/added\n",
    "add with mode": "ADD --chmod=700 one /c/added-mode\n",
    # --- below /usr and /var
    "copy below /usr": "COPY one /usr/local/bin/one\nCOPY --chown=5:6 dir /usr/local/share/dir\n",
    "run below /usr": "RUN mkdir /usr/local/lib/mine && touch /usr/local/lib/mine/x && chmod 2750 /usr/local/lib/mine && "
    "ln -s mine /usr/local/lib/alias && rm /usr/bin/tac && ln /usr/bin/wc /usr/local/bin/wc2 && chown 7 /usr/bin/nl\n",
    "below /var": "RUN install -d -o 33 -m 700 /var/lib/mine && echo s >/var/lib/mine/state && install -d /var/cache/own && "
    "echo c >/var/cache/own/c && rm -f /var/lib/dpkg/status-old\nADD packed.tar /var/lib/packed/\nCOPY dir /var/cache/dir\n"
    "WORKDIR /var/lib/work/place\n",
    # --- RUN
    "run in exec form": 'RUN ["/bin/sh", "-c", "echo $0 >/c/exec"]\n',
    "run over lines": "RUN echo a \\\n  # a comment\n  && echo b \\\n\n  >/c/lines\n",
    "another shell": 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\nRUN source /etc/os-release && echo $ID >/c/shell; ! false | true\n'
    'SHELL ["/bin/sh", "-c"]\n',
    "processes end with their RUN": "RUN nohup sleep 1000 >/dev/null 2>&1 &\n"
    "RUN ps -e -o args= | grep -c '[s]leep 1000' >/c/left || true\n",
    "a port is free in the next RUN": "RUN python3 -m http.server 8999 >/dev/null 2>&1 & sleep 1\n"
    "RUN python3 -c \"import socket; print(socket.socket().connect_ex(('127.0.0.1', 8999)) != 0)\" >/c/port\n",
    "a port that was closed is free in the next RUN": "COPY serve.py /c/\nRUN python3 /c/serve.py\nRUN python3 /c/serve.py\n",
    "delete what a layer has": "RUN mkdir /c/gone && touch /c/gone/x /c/kept\nRUN rm -r /c/gone\n",
    "replace a directory by a file": "RUN mkdir /c/was && touch /c/was/x\nRUN rm -r /c/was && echo y >/c/was\n",
    "hard links and fifos": "RUN echo x >/c/h1 && ln /c/h1 /c/h2 && mkfifo /c/fifo && ln -s /nowhere /c/dangling\n",
    "modes": "RUN touch /c/suid /c/sticky && chmod 4755 /c/suid && chmod 1644 /c/sticky && install -d -m 2775 /c/setgid\n",
    "capabilities of a RUN": "RUN grep CapEff /proc/self/status >/c/capabilities\n",
    "umask": "RUN umask >/c/umask\n",
    # --- mounts
    "bind mount": "RUN --mount=type=bind,source=one,target=/mnt/one cp /mnt/one /c/bound\n",
    "bind mount, relative": "WORKDIR /c\nRUN --mount=type=bind,source=one,target=here cat here >bound-relative\n",
    "bind mount of a stage": "RUN --mount=type=bind,from=first,source=/made,target=/mnt/x cp /mnt/x /c/bound-stage\n",
    "bind mount of a stage in other letters": "RUN --mount=from=First,source=/made,target=/mnt/x cp /mnt/x /c/bound-letters\n",
    "bind mount without a type": "RUN --mount=target=/ctx ls /ctx/dir >/c/bound-context\n",
    "cache mount": "RUN --mount=type=cache,target=/var/cache/mine touch /var/cache/mine/x && ls /var/cache/mine >/c/cached\n",
    "bind mount that is written": "RUN --mount=type=bind,source=dir,target=/mnt/rw,rw touch /mnt/rw/new && ls /mnt/rw >/c/bound-rw\n",
    "cache mount with owner": "RUN --mount=type=cache,target=/mnt/cc,uid=5,gid=6,mode=0700,id=cc,sharing=locked "
    "stat -c '%u %g %a' /mnt/cc >/c/cache-owner\n",
    "cache mount from a stage": "RUN --mount=type=cache,target=/mnt/cf,from=first,source=/owned cat /mnt/cf/x >/c/cache-from\n",
    "temporary mount": "RUN --mount=type=tmpfs,target=/c/temporary touch /c/temporary/x\n",
    # --- VOLUME
    "a volume that is written": "VOLUME /c/volume\nRUN mkdir /c/volume && echo x >/c/volume/x && chown 1500 /c/volume\nCOPY one /c/volume/one\n",
    "a volume as JSON": 'VOLUME ["/c/v1", "/c/v2"]\nRUN echo x >/c/v1/x || mkdir -p /c/v1\n',
    # --- variables
    "env forms": "ENV A=1 B=\"two words\" C=three\\ words\nENV D old form\nRUN echo \"$A $B $C $D\" >/c/env\n",
    "arg with a default": "ARG V=default\nRUN echo $V >/c/arg\n",
    "env over arg": "ARG W=arg\nENV W=env\nRUN echo $W >/c/over-arg\n",
    "arg before FROM": "ARG TAG\nRUN echo \"tag $TAG\" >/c/tag\n",
    "predefined args": "ARG TARGETARCH\nARG TARGETPLATFORM\nRUN echo \"$TARGETARCH $TARGETPLATFORM\" >/c/target\n",
    "substitutions": "ENV S=${A:+set} T=${NOPE:-none} U=\\$A\nRUN echo \"$S $T $U\" >/c/substituted\n",
    # --- odd ones
    "a workdir through a link": "RUN mkdir /c/wr && ln -s wr /c/wl\nWORKDIR /c/wl/sub\nCOPY one .\nRUN pwd >where; pwd -P >>where\n"
    "WORKDIR ../up\nRUN pwd >where\nWORKDIR /\n",
    "a workdir in quotes, with a slash, of a tilde": 'WORKDIR /c/slash/\nRUN pwd >w\nWORKDIR "/c/quo ted"\nRUN pwd >w\nWORKDIR ~\nRUN pwd >w\n',
    "users and groups as numbers and names": "USER 0:crew\nRUN id >/tmp/u1\nUSER worker:1600\nRUN id >/tmp/u2; echo $HOME >>/tmp/u2\n"
    'USER "worker"\nRUN id >/tmp/u3\nUSER 1500:0\nRUN id >/tmp/u4; echo $HOME $USER >>/tmp/u4\nUSER root\n',
    "copy onto directories and links": "RUN mkdir /c/onto /c/linked && ln -s linked /c/link\nCOPY one /c/onto\nCOPY dir /c/link\n"
    "RUN echo old >/c/target && ln -s target /c/to-file && ln -s none /c/dangling-to\nCOPY one /c/to-file\n"
    "COPY one /c/dangling-to/\n",
    "copy over a link": "RUN mkdir /c/has-link && echo old >/c/kept-target && ln -s /c/kept-target /c/has-link/x\nCOPY dir /c/has-link\n",
    "copy what a link leads to": "COPY links/to /c/followed\nCOPY --from=first /alias /c/followed-from\nCOPY --from=first /aliases /c/followed-dir\n"
    "COPY --from=first /aliases/x /c/followed-below\n",
    "copy from a stage by pattern": "COPY --from=first /owned/* /m?de /c/patterns/\n",
    "copy from a stage what is no file": "COPY --from=first /nodes /c/nodes-from\n",
    "copy a directory's forms": "COPY dir/ /c/form1\nCOPY dir/. /c/form2\nCOPY ./dir/../one /c/form3\nCOPY /one /c/form4\nCOPY ../one /c/form5\n",
    "copy with owners from variables": "ARG WHO_OWNS=worker\nENV GROUP=crew\nCOPY --chown=$WHO_OWNS:$GROUP one /c/owned-var\n"
    "COPY --chown=0:crew one /c/owned-group\n",
    "add a text named as an archive": "ADD text.tgz /c/text/\n",
    "add an archive over what is there": "RUN mkdir -p /c/over-it/inside /c/real-one && chown 9 /c/over-it/inside && ln -s real-one /c/over-link\n"
    "ADD packed.tar /c/over-it\nADD packed.tar /c/over-link\n",
    "nodes and sockets": "RUN mknod /c/null c 1 3 && mknod /c/block b 7 0 && "
    "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/c/socket')\" && truncate -s 5M /c/sparse && echo end >>/c/sparse\n",
    "a directory that is made anew": "RUN mkdir -p /c/anew/a && touch /c/anew/a/x\nRUN rm -r /c/anew && mkdir -p /c/anew/b\n"
    "RUN rm -r /usr/share/doc && echo x >/usr/share/doc\n",
    "replace a directory by a link, a link by a directory": "RUN mkdir /c/dir-link && touch /c/dir-link/x && ln -s /etc /c/link-dir\n"
    "RUN rm -r /c/dir-link && ln -s /etc /c/dir-link && rm /c/link-dir && mkdir /c/link-dir && touch /c/link-dir/x\n",
    "capabilities of a file": "RUN python3 -c \"import os; os.setxattr('/usr/bin/nl', 'security.capability', bytes.fromhex('01000002' '00200000' + '0' * 24))\"\n"
    "RUN python3 -c \"import os; print(os.getxattr('/usr/bin/nl', 'security.capability'))\" >/c/file-capability\n",
    "variables of a RUN, blanks after the escape": "ARG http_proxy\nRUN env | grep -v ^HOSTNAME= | sort >/c/run-env\nUSER worker\nRUN env | grep -v ^HOSTNAME= | sort >/tmp/run-env\n"
    'USER root\nENV X_V=1\nRUN ["touch", "/c/$X_V"]\n'
    "RUN echo a \\   \n  b >/c/blanks\n",
}  # fmt: skip

SERVE = """\
from socket import socket
server, client = socket(), socket()
server.bind(("127.0.0.1", 8998))
server.listen()
client.connect(server.getsockname())
server.accept()[0].close()
"""
"""The kernel keeps this server's port for a minute: the server closed the connection, and did not allow reuse."""

FILES = {
    "one": "1\n", "two": "22\n", "a.txt": "a", "b.txt": "b", "dir/x": "x", "dir/sub/y": "y", "with blank": "b", "-dash": "d",
    "odd/ü [x] $y": "odd", "serve.py": SERVE, "packed.tar": "packed", "text.tgz": "text", "ignoring/kept": "k", "ignoring/a.secret": "s", "ignoring/again.secret": "s",
}  # fmt: skip

_PARTS_AT_ONCE = 16
"""A build of all would take minutes on a busy machine: an instruction costs more, the more layers are below it."""


def _with_parts(parts: Iterable[str]) -> Recipe:
    return Recipe(
        f"ARG TAG=bookworm-slim\nFROM debian:$TAG AS First\nARG TAG\n"
        "RUN echo made >/made && install -d -o 33 -g 44 -m 750 /owned && install -o 55 /made /owned/x\n"
        "RUN ln -s made /alias && ln -s owned /aliases && mkdir /nodes && mkfifo /nodes/fifo && mknod /nodes/null c 1 3 && "
        "echo x >/nodes/a && ln /nodes/a /nodes/b && chmod 4711 /nodes/a && ln -s x /nodes/dangling\n"
        "USER 77\nWORKDIR /work/place\nUSER root\n"
        f"FROM --platform=$BUILDPLATFORM {BASE} AS Parent\nRUN mkdir /volumes\nVOLUME /volumes\n"
        "RUN echo v >/volumes/v\nONBUILD RUN echo onbuild >/onbuild\n"
        f"FROM parent\n{ONE}RUN echo w >/volumes/w\n" + "".join(parts),
        FILES,
    )


WHOLES = [_with_parts(PARTS[name] for name in names) for names in batched(PARTS, _PARTS_AT_ONCE)]
"""Dockerfiles of many of :data:`PARTS` each."""

_MOUNTS = (
    "RUN --mount=type=secret,id=x test ! -e /run/secrets/x && echo none >/s\nRUN --mount=type=ssh echo x >/of-ssh\n"
)
_COMMENTS = (
    "# escape=\\\n# a comment\nRUN echo a \\\n# in between\n && echo b >/x\nrun echo a >/y\nenv A=b\nworkdir /small\n"
)

CONFIGS: dict[str, Recipe] = {
    "ENTRYPOINT as JSON": Recipe('ENTRYPOINT ["/bin/sh", "-c", "exec \\"$@\\"", "sh"]\nCMD ["x", "y"]\n'),
    "ENTRYPOINT as text, HEALTHCHECK as JSON": Recipe(
        'ENTRYPOINT exec sleep infinity\nHEALTHCHECK CMD ["test", "-e", "/x"]\n'
    ),
    "ENTRYPOINT forgets CMD of the base, SHELL": Recipe('SHELL ["/bin/bash", "-c"]\nENTRYPOINT ["/usr/bin/env"]\n'),
    "ENTRYPOINT forgets CMD of a stage, and not its own": Recipe(
        f'FROM {BASE} AS a\nCMD ["x"]\nFROM a AS b\nENTRYPOINT ["y"]\nFROM b AS c\nCMD ["z"]\nENTRYPOINT ["y"]\nFROM c\n'
    ),
    "ENTRYPOINT as text forgets CMD of a stage": Recipe(
        f'FROM {BASE} AS a\nSHELL ["/bin/bash", "-c"]\nCMD ["x"]\nFROM a\nENTRYPOINT exec y\n'
    ),
    "empty CMD and ENTRYPOINT": Recipe(
        f'FROM {BASE} AS a\nENTRYPOINT ["x"]\nCMD ["y"]\nFROM a\nENTRYPOINT []\nCMD []\n'
    ),
    "CMD as text, HEALTHCHECK NONE": Recipe("CMD echo $HOME\nHEALTHCHECK CMD true\nHEALTHCHECK NONE\n"),
    "CMD of another shell": Recipe('SHELL ["/bin/bash", "-c"]\nCMD echo x\nENTRYPOINT exec "$0"\n'),
    "HEALTHCHECK, STOPSIGNAL, EXPOSE, LABEL, MAINTAINER, VOLUME and ONBUILD": Recipe(
        "HEALTHCHECK --interval=2s --timeout=3s --start-period=4s --retries=5 CMD test -e /x\nSTOPSIGNAL SIGQUIT\n"
        'EXPOSE 80 81/udp\nENV PORT=90\nEXPOSE $PORT/tcp 91\nLABEL a=b "c d"="e f"\nLABEL g=h\nMAINTAINER someone\n'
        'VOLUME ["/v1", "/v2"]\nVOLUME /v3\nENV V=/of/v\nVOLUME $V\nRUN mkdir -p $V && touch $V/x\n'
        "ONBUILD RUN false\nONBUILD COPY nothing /\n"
    ),
    "VOLUME of variables that change": Recipe(
        "ENV V=/first\nARG W=/of/arg\nVOLUME $V ${W} ${W:+/alt}\nENV V=/second\nARG W=/other\n"
        'VOLUME ["$W", "/a b"]\nVOLUME \'/single$W\' "/double$W"\nRUN mkdir -p $V && touch $V/x\n'
    ),
    "USER and WORKDIR": Recipe("WORKDIR /a\nWORKDIR b\nUSER 12:34\n"),
    "a WORKDIR that is USER's": Recipe("USER nobody\nWORKDIR /of/nobody\n"),
    "ENV": Recipe('ENV A="b c" D=e F=\nENV PATH=/x:$PATH\n'),
    "ARG of a stage": Recipe(
        f"FROM {BASE} AS a\nARG G=of-a H=$G.h\nENV E=env\nARG E=arg\nFROM a AS b\nRUN echo $G $H $E >/b\nARG G=of-b\n"
        f"FROM b\nRUN echo $G $H $E >/c\n",
        # Docker 20.10 does not see the first of an ARG's names in the value of the second.
        twin=f"FROM {BASE} AS a\nARG G=of-a\nARG H=$G.h\nENV E=env\nARG E=arg\nFROM a AS b\nRUN echo $G $H $E >/b\n"
        "ARG G=of-b\nFROM b\nRUN echo $G $H $E >/c\n",
    ),
    "ONBUILD of a stage": Recipe(
        f'FROM {BASE} AS Parent\nONBUILD USER nobody\nONBUILD SHELL ["/bin/bash", "-c"]\nONBUILD COPY one /of/\n'
        "ONBUILD VOLUME /volume\nFROM parent AS Child\nWORKDIR /of/nobody\nRUN echo $0 >zero\nCMD echo x\n"
        "FROM child\nUSER root\nRUN mkdir -p /volume && echo y >/volume/y\nCMD echo z\n",
        {"one": "1"},
    ),
    "here-documents, --link, RUN --network=none, --mount=type=secret and ssh": Recipe(
        "RUN <<EOF\necho a >/x\necho b >>/x\nEOF\nCOPY <<'END' /y\n$HOME\nEND\nCOPY --link one /a/b/\nADD --link one /a/c/\n"
        f"RUN --network=none grep -c : /proc/net/dev >/n\n{_MOUNTS}",
        {"one": "1"},
        twin="RUN echo a >/x; echo b >>/x\nRUN echo '$HOME' >/y && chmod 644 /y\nCOPY one /a/b/\nADD one /a/c/\n"
        f"RUN echo 1 >/n\n{_MOUNTS}",
    ),
    "COPY and ADD --exclude": Recipe(
        "COPY --exclude=*.txt --exclude=sub . /x/\nADD --exclude=a.* *a* a* /y/\n",
        {"a.txt": "a", "ab": "b", "b": "b", "sub/c": "c", "d/e": "e", ".dockerignore": "Dockerfile\n.dockerignore\n"},
        twin="COPY ab b /x/\nCOPY d /x/d\nADD a.txt ab /y/\n",
    ),
    "an ignore file": Recipe(
        "COPY . /ctx\n", {"a": "a", "b": "b", "sub/a": "a", ".dockerignore": "**/a\n!sub/a\nDockerfile*\n"}
    ),
    "an ignore file of the Dockerfile": Recipe(
        "COPY . /ctx\n",
        {"a": "a", "b": "b", ".dockerignore": "a\n", "Dockerfile.dockerignore": "# words\nb\n*/c\n", "d/c": ""},
    ),
    "limits of a RUN": Recipe(
        'RUN python3 -c "import os; [os.dup(0) for _ in range(3000)]"\nRUN ulimit -n >/files; ulimit -Hn >/files-hard\nRUN grep processes /proc/self/limits >/processes\n',
    ),
    "limits of a RUN, of other users and forms": Recipe(
        'USER nobody\nRUN python3 -c "import os; print(len([os.dup(0) for _ in range(3500)]))" >/tmp/of-nobody; ulimit -n >>/tmp/of-nobody\nUSER root\n'
        'RUN ["/bin/bash", "-c", "ulimit -n >/of-json; ulimit -Hn >>/of-json"]\nSHELL ["/bin/bash", "-c"]\nRUN for l in n s c v f t d m; do ulimit -S$l; ulimit -H$l; done >/limits\n'
        "RUN ulimit -Sn $(ulimit -Hn) && ulimit -n >/raised\n"
    ),
    "directives of syntax and checks, comments, small letters": Recipe(
        _COMMENTS, directives="# syntax=docker/dockerfile:1\n# check=skip=all\n", twin=_COMMENTS
    ),
    "a directive of another escape": Recipe("RUN echo a `\n  b >/x\n", directives="# escape=`\n"),
}


def configured(recipe: Recipe, *, for_docker: bool = False) -> str:
    """Return the whole Dockerfile of one of :data:`CONFIGS`."""
    if for_docker and recipe.twin is not None:
        return f"FROM {BASE}\n{recipe.twin}"
    return f"{recipe.directives}FROM {BASE}\n{recipe.text}"
