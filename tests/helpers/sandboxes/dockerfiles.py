# ruff: noqa: E501  # a Dockerfile a line
"""Small Dockerfiles, by what each is about: what two builders make of them is compared."""

from dataclasses import dataclass, field

BASE = "debian:bookworm-slim"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile with its context."""

    text: str
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Path in the context → text; a path that ends in ``.tar`` is made an archive of one such file."""

    twin: str | None = None
    """The same in words that Docker's oldest supported builder reads, where it does not read ``text``."""


ONE = """\
RUN useradd -m -u 1500 worker && groupadd -g 1600 crew && usermod -aG crew worker && mkdir /c
"""
"""What each of the parts below may use."""

PARTS: dict[str, str] = {
    # --- WORKDIR, USER
    "workdirs that nothing uses": "WORKDIR /c/w1\nWORKDIR /c/w2\nWORKDIR deep/er\nWORKDIR /\n",
    "a workdir of a user": "USER worker\nWORKDIR /home/worker/a/b\nUSER root\nWORKDIR /\n",
    "a workdir of a user, then COPY": "USER worker\nWORKDIR /home/worker/c\nCOPY one .\nUSER root\nWORKDIR /\n",
    "a workdir of a user, then RUN": "USER worker\nWORKDIR /home/worker/d\nRUN echo x >x\nUSER root\nWORKDIR /\n",
    "a workdir of root, then another user's RUN": "WORKDIR /c/rw\nUSER worker\nRUN id >/tmp/rw\nUSER root\nWORKDIR /\n",
    "a workdir that is there": "RUN install -d -m 711 -o 7 -g 8 /c/there\nUSER worker\nWORKDIR /c/there\nUSER root\nWORKDIR /\n",
    "a workdir with a variable": "ENV PLACE=/c/var\nWORKDIR $PLACE/${NONE:-sub}\nWORKDIR /\n",
    "a workdir with a blank": "WORKDIR /c/a blank\nRUN pwd >here\nWORKDIR /\n",
    "a user with a group": "USER worker:crew\nRUN id >/tmp/group\nUSER 0\n",
    "a user with other groups": "USER worker\nRUN id >/tmp/groups\nUSER root\n",
    "a user that is a number": "USER 4242\nRUN id >/tmp/number\nUSER root\n",
    "a workdir of a number": "USER 4242\nWORKDIR /c/number\nUSER root\nWORKDIR /\n",
    "a workdir of numbers": "USER 4242:4343\nWORKDIR /c/numbers\nUSER root\nWORKDIR /\n",
    "a high id": "RUN echo x >/c/high && chown 100001:197609 /c/high\nUSER 100001\nRUN id >/tmp/high\nUSER root\n",
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
    "copy an odd name": "COPY odd /c/odd\n",
    "copy from a stage": "COPY --from=first /made /c/from/made\n",
    "copy from a stage by number": "COPY --from=0 /made /c/from/number\n",
    "copy from a stage in other letters": "COPY --from=FIRST /made /c/from/letters\n",
    "copy from a stage, with owners": "COPY --from=first /owned /c/from/owned\n",
    "copy from a stage, workdir": "COPY --from=first /work /c/from/work\n",
    "copy from an image": f"COPY --from={BASE} /etc/debian_version /c/from/image\n",
    "copy a link": "COPY links /c/links\n",
    "copy through a link": "RUN mkdir /c/real && ln -s real /c/alias\nCOPY one /c/alias/\n",
    "copy relative": "WORKDIR /c/relative\nCOPY one sub/\nWORKDIR /\n",
    "copy what is ignored": "COPY ignoring /c/ignoring\n",
    "copy over": "COPY one /c/over\nCOPY two /c/over\n",
    "copy with a variable": "ARG WHICH=two\nCOPY $WHICH /c/variable\n",
    # --- ADD
    "add an archive": "ADD packed.tar /c/packed/\n",
    "add an archive with owner": "ADD --chown=worker packed.tar /c/packed-owned/\n",
    "copy an archive": "COPY packed.tar /c/packed.tar\n",
    "add a file": "ADD one /c/added\n",
    # --- RUN
    "run in exec form": 'RUN ["/bin/sh", "-c", "echo $0 >/c/exec"]\n',
    "run over lines": "RUN echo a \\\n  # a comment\n  && echo b \\\n\n  >/c/lines\n",
    "another shell": 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\nRUN source /etc/os-release && echo $ID >/c/shell; ! false | true\n'
    'SHELL ["/bin/sh", "-c"]\n',
    "processes end with their RUN": "RUN nohup sleep 1000 >/dev/null 2>&1 &\n"
    "RUN ps -e -o args= | grep -c '[s]leep 1000' >/c/left || true\n",
    "a port is free in the next RUN": "RUN python3 -m http.server 8999 >/dev/null 2>&1 & sleep 1\n"
    "RUN python3 -c \"import socket; print(socket.socket().connect_ex(('127.0.0.1', 8999)) != 0)\" >/c/port\n",
    "delete what a layer has": "RUN mkdir /c/gone && touch /c/gone/x /c/kept\nRUN rm -r /c/gone\n",
    "replace a directory by a file": "RUN mkdir /c/was && touch /c/was/x\nRUN rm -r /c/was && echo y >/c/was\n",
    "hard links and fifos": "RUN echo x >/c/h1 && ln /c/h1 /c/h2 && mkfifo /c/fifo && ln -s /nowhere /c/dangling\n",
    "modes": "RUN touch /c/suid /c/sticky && chmod 4755 /c/suid && chmod 1644 /c/sticky && install -d -m 2775 /c/setgid\n",
    "capabilities of a RUN": "RUN grep CapEff /proc/self/status >/c/capabilities\n",
    "umask": "RUN umask >/c/umask\n",
    # --- mounts
    "bind mount": "RUN --mount=type=bind,source=one,target=/mnt/one cp /mnt/one /c/bound\n",
    "bind mount, relative": "WORKDIR /c\nRUN --mount=type=bind,source=one,target=here cat here >bound-relative\nWORKDIR /\n",
    "bind mount of a stage": "RUN --mount=type=bind,from=first,source=/made,target=/mnt/x cp /mnt/x /c/bound-stage\n",
    "bind mount of a stage in other letters": "RUN --mount=from=First,source=/made,target=/mnt/x cp /mnt/x /c/bound-letters\n",
    "bind mount without a type": "RUN --mount=target=/ctx ls /ctx/dir >/c/bound-context\n",
    "cache mount": "RUN --mount=type=cache,target=/var/cache/mine touch /var/cache/mine/x && ls /var/cache/mine >/c/cached\n",
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
}  # fmt: skip

FILES = {
    "one": "1\n", "two": "22\n", "a.txt": "a", "b.txt": "b", "dir/x": "x", "dir/sub/y": "y", "with blank": "b",
    "odd/ü [x] $y": "odd", "packed.tar": "packed", "ignoring/kept": "k", "ignoring/a.secret": "s", "ignoring/again.secret": "s",
}  # fmt: skip

WHOLE = Recipe(
    f"ARG TAG=bookworm-slim\nFROM debian:$TAG AS First\nARG TAG\n"
    "RUN echo made >/made && install -d -o 33 -g 44 -m 750 /owned && install -o 55 /made /owned/x\n"
    "USER 77\nWORKDIR /work/place\nUSER root\n"
    f"FROM {BASE} AS Parent\nRUN mkdir /volumes\nVOLUME /volumes\nRUN echo v >/volumes/v\nONBUILD RUN echo onbuild >/onbuild\n"
    f"FROM parent\n{ONE}RUN echo w >/volumes/w\n" + "".join(PARTS.values()),
    FILES,
)

CONFIGS: dict[str, Recipe] = {
    "ENTRYPOINT as JSON": Recipe('ENTRYPOINT ["/bin/sh", "-c", "exec \\"$@\\"", "sh"]\nCMD ["x", "y"]\n'),
    "ENTRYPOINT as text": Recipe("ENTRYPOINT exec sleep infinity\n"),
    "ENTRYPOINT forgets CMD of the base": Recipe('ENTRYPOINT ["/usr/bin/env"]\n'),
    "CMD as text": Recipe("CMD echo $HOME\n"),
    "CMD of another shell": Recipe('SHELL ["/bin/bash", "-c"]\nCMD echo x\nENTRYPOINT exec "$0"\n'),
    "HEALTHCHECK": Recipe("HEALTHCHECK --interval=2s --timeout=3s --start-period=4s --retries=5 CMD test -e /x\n"),
    "HEALTHCHECK as JSON": Recipe('HEALTHCHECK CMD ["test", "-e", "/x"]\n'),
    "HEALTHCHECK NONE": Recipe("HEALTHCHECK CMD true\nHEALTHCHECK NONE\n"),
    "STOPSIGNAL": Recipe("STOPSIGNAL SIGQUIT\n"),
    "EXPOSE": Recipe("EXPOSE 80 81/udp\n"),
    "LABEL": Recipe('LABEL a=b "c d"="e f"\nLABEL g=h\n'),
    "MAINTAINER": Recipe("MAINTAINER someone\n"),
    "VOLUME": Recipe('VOLUME ["/v1", "/v2"]\nVOLUME /v3\n'),
    "USER and WORKDIR": Recipe("WORKDIR /a\nWORKDIR b\nUSER 12:34\n"),
    "a WORKDIR that is USER's": Recipe("USER nobody\nWORKDIR /of/nobody\n"),
    "ENV": Recipe('ENV A="b c" D=e F=\nENV PATH=/x:$PATH\n'),
    "ONBUILD": Recipe("ONBUILD RUN false\nONBUILD COPY nothing /\n"),
    "SHELL": Recipe('SHELL ["/bin/bash", "-c"]\n'),
    "a here-document": Recipe(
        "RUN <<EOF\necho a >/x\necho b >>/x\nEOF\nCOPY <<'END' /y\n$HOME\nEND\n",
        twin="RUN echo a >/x; echo b >>/x\nRUN echo '$HOME' >/y && chmod 644 /y\n",
    ),
    "COPY --link": Recipe("COPY --link one /a/b/\n", {"one": "1"}, twin="COPY one /a/b/\n"),
    "an ignore file": Recipe(
        "COPY . /ctx\n", {"a": "a", "b": "b", "sub/a": "a", ".dockerignore": "**/a\n!sub/a\nDockerfile*\n"}
    ),
    "an ignore file of the Dockerfile": Recipe(
        "COPY . /ctx\n",
        {"a": "a", "b": "b", ".dockerignore": "a\n", "Dockerfile.dockerignore": "# words\nb\n*/c\n", "d/c": ""},
    ),
    "comments and directives": Recipe("# escape=\\\n# a comment\nRUN echo a \\\n# in between\n && echo b >/x\n"),
    "instructions in small letters": Recipe("run echo a >/x\nenv A=b\nworkdir /small\n"),
    "a directive of another escape": Recipe("RUN echo a `\n  b >/x\n"),
}


def configured(recipe: Recipe, *, for_docker: bool = False) -> str:
    """Return the whole Dockerfile of one of :data:`CONFIGS`."""
    text = recipe.twin if for_docker and recipe.twin is not None else recipe.text
    directive = "# escape=`\n" if "`" in text else ""
    return f"{directive}FROM {BASE}\n{text}"
