# ruff: noqa: E501  # a Dockerfile a line
"""Dockerfiles in forms that only Docker of today reads, or that builders read in more than one way."""

from tests.helpers.sandboxes.dockerfile_kinds import KINDS
from tests.helpers.sandboxes.dockerfiles import BASE, Recipe

FORMS: dict[str, Recipe] = {
    "here-documents": Recipe(
        r"""
ENV NAME=value
COPY <<EOF /s.sh
cost \$1 and \\ and "$NAME" and ${NONE:-'none'} and a\nb
EOF
COPY --chmod=750 --chown=5 <<A <<-'B' <<"C" /tmp/
$NAME
A
		tabs $NAME
	B
\$NAME
C
ADD <<name.txt one /tmp/
${NAME%lue}
name.txt
RUN <<EOF
echo "$NAME" >/of-run; echo "$0" >>/of-run
EOF
RUN <<EOF
#!/usr/bin/python3
import sys; open("/of-program", "w").write(sys.argv[0])
EOF
RUN cat <<EOF >/of-cat && cat <<'END' >>/of-cat
$NAME \$NAME
EOF
$NAME
END
""",
        {"one": "1"},
    ),
    "an ignore file with exceptions": Recipe(
        """
COPY . /all
COPY src/*/*.py /some/
RUN --mount=type=bind,target=/mnt ls -R /mnt >/mounted
RUN --mount=source=src,target=/mnt ls -R /mnt >/mounted-part
RUN --mount=target=/srv,source=/ test ! -e /srv/notes && test ! -e /srv/src/b.txt && test -e /srv/src/deep/er/d.py
ADD src /added
""",
        {
            "src/a.py": "a",
            "src/b.txt": "b",
            "src/deep/c.py": "c",
            "src/deep/er/d.py": "d",
            "src/deep/e.txt": "e",
            "notes/solution": "s",
            "x.md": "x",
            "lib/y": "y",
            "lib/keep/z": "z",
            "lib/keep/.hidden": "h",
            ".dockerignore": " # no comment\n*\n\n!src/**/*.py\n!lib/keep\nlib/**/.h*\n!/x.m?\n",
        },
    ),
    "stages that are not reached": Recipe(
        f"RUN exit 1\nFROM nowhere.invalid/x AS unused\nCOPY --from=also.invalid/y /x /x\nFROM {BASE} AS used\nRUN echo u >/u\n"
        f"FROM unused AS other\nFROM {BASE}\nCOPY --from=Used /u /u1\nCOPY --from=3 /u /u2\nRUN --mount=from=used,target=/mnt cp /mnt/u /u3\n",
        directives="ARG ZERO=scratch\nFROM $ZERO AS zero\n",
    ),
    "variables in FROM": Recipe(
        "FROM ${NOPE:-$D}:${REL}${V:+-$V} AS a\nRUN echo a >/a\nFROM ${WHOLE%%@*} AS b\nRUN echo b >/b\nFROM ${OF/x/debian} AS C\n"
        'FROM "$D":${REL}-${V} AS d\nCOPY --from=a /a /\nCOPY --from=b /b /\n',
        directives=f"ARG D=debian REL=bookworm V=slim\nARG WHOLE={BASE}@sha OF=x:bookworm-slim\n",
    ),
    "forms of substitution": Recipe(
        r"""
ARG V=a.b.c A P=/usr/local/lib/x.tar.gz
ENV SET=s EMPTY=
COPY f-${A-unset} f-${SET+set} /tmp/
COPY f-${EMPTY-} f-${EMPTY:-empty} f-${SET:?} /tmp/
COPY f-${V#*.} f-${V##*.} f-${V%.*} f-${V%%.*} f-${V/b/B} f-${V//./-} /tmp/
ENV TAIL=${P##*/} HEAD=${P%/*} NESTED=${NOPE:-${SET:+$V}} QUOTED="${NOPE:-a b}" SINGLE='$V' ESCAPED=\$V LEFT="\$V \\ \x"
LABEL tail=$TAIL "two $SET"="${HEAD//\//_}"
RUN echo "$TAIL $HEAD $NESTED $QUOTED $SINGLE $ESCAPED $LEFT" >/formed
WORKDIR /tmp/${P##*.}$EMPTY
USER ${A:-${SET/s/nobody}}
STOPSIGNAL ${S:-SIG}QUIT
ENV PORTS="80 81/udp"
EXPOSE $PORTS 90-92
""",
        dict.fromkeys(
            ("f-unset", "f-set", "f-", "f-empty", "f-s", "f-b.c", "f-c", "f-a.b", "f-a", "f-a.B.c", "f-a-b-c"), "f"
        ),
    ),
    "ARG and ENV of one name": Recipe(
        "ENV L=env M=env\nARG L=arg\nARG M\nRUN echo $L $M >/r1\nENV L=$L-again\nRUN echo $L >/r2\nARG L=last PATH=$PATH:/none\n"
        f"RUN echo $L $PATH >/r3\nFROM {BASE} AS first\nENV L=env\nARG L=arg M\nFROM first AS second\nRUN echo $L $M >/r4\nARG L=second TARGETARCH\nCMD echo $L\nLABEL l=$L\nRUN echo $L $TARGETARCH >/r5\n"
        'ENV N=\'a"b\' O="c\'d $L"\nRUN echo "$N $O" >/r6\n',
        directives="ARG M=global\n",
    ),
    "names that --chown does not know": Recipe(
        "RUN useradd -u 1500 -g 50 worker\nCOPY --chown=nobody2 one /tmp/1\nCOPY --chown=nobody3:staff one /tmp/2\nCOPY --chown=worker:nogroup3 one /tmp/3\n"
        "ARG WHO=none\nCOPY --chown=$WHO:${WHO}4 dir /tmp/4\nADD --chown=worker:1600 one /tmp/5\nCOPY --from=0 --chown=other /etc/debian_version /tmp/6\n",
        {"one": "1", "dir/x": "x"},
        directives=f"FROM {BASE} AS zero\n",
    ),
    "modes": Recipe(
        "COPY --chmod=u+x,go-w one /tmp/1\nCOPY --chmod=a=rX dir /tmp/2\nARG M=750\nCOPY --chmod=$M dir one /tmp/\nADD --chmod=4711 one /tmp/4\n"
        "COPY --chmod=u=rwxs,g=u,o=,+t one /tmp/5\nCOPY --chmod=0640 dir/x dir/sub /tmp/6/\nCOPY --chmod=700 dir /tmp/7/8\nCOPY --chmod=2711 one /tmp/9/10/\n",
        {"one": "1", "dir/x": "x", "dir/sub/y": "y"},
    ),
    "modes of what comes from a stage": Recipe(
        "COPY --from=zero --chmod=700 /d /tmp/1/2\nCOPY --from=zero --chmod=2710 --chown=7:8 /ld /tmp/3\nCOPY --from=zero --chmod=640 /lf /tmp/4/5\n"
        f"COPY --from={BASE} --chmod=711 /etc/apt /tmp/6\nCOPY --from=zero --chmod=755 /d /tmp/7\nCOPY --from=zero --chmod=600 /d/* /tmp/8/\n"
        "WORKDIR /tmp/9\nCOPY --from=0 --chmod=770 d .\n",
        directives=f"FROM {BASE} AS zero\nRUN mkdir -p /d/sub && touch /d/x /d/sub/y /f && chmod 751 /d /d/sub && chown 5:6 /d/sub && ln -s d /ld && ln -s f /lf\n",
    ),
    "symbolic modes of what comes from a stage": Recipe(
        "COPY --from=zero --chmod=u+x,go-r /f /tmp/1\nCOPY --from=zero --chmod=a=rX --chown=7:8 /d /tmp/2/3\nCOPY --from=zero --chmod=go= /lf /ld/s?b /tmp/4/\n"
        f"COPY --from={BASE} --chmod=o-rx /etc/apt /tmp/5\nCOPY --from=1 --chmod=+t /d/sub /tmp/6\nWORKDIR /tmp/7\n"
        "COPY --from=late --chmod=u=rwxs,g=u d/x .\nRUN ls -l >/dev/null\nCOPY --from=late --chmod=g+w /d /tmp/8\n",
        directives=f"FROM {BASE} AS zero\nRUN mkdir -p /d/sub && touch /d/x /d/sub/y /f && chmod 751 /d && chown 5:6 /d/sub && ln -s d /ld && ln -s f /lf && ln -s x /d/l\n"
        "FROM zero AS late\n",
    ),
    "mounts of memory and of secrets": Recipe(
        "RUN --mount=type=tmpfs,target=/tmp,size=1m df --output=size /tmp | tail -1 | tr -d ' ' >/size\nRUN --mount=type=tmpfs,dst=/tmp,size=3145728 df --output=size /tmp | tail -1 | tr -d ' ' >/size3\n"
        'RUN --mount=type=secret,id=x,env=SECRET echo "none: $SECRET" >/secret\nRUN --mount=type=secret,id=y,target=/tmp/y,required=false test ! -e /tmp/y\n'
        "ARG AT=tmp\nRUN --mount=type=cache,target=/${AT},id=$AT,mode=0700 stat -c %a /tmp >/cached\n",
    ),
    "names of whiteouts": Recipe(
        "RUN mkdir /tmp/w && cd /tmp/w && touch .wh.y z && mkdir .wh.d && touch d2\nRUN touch /tmp/w/a && rm /tmp/w/z\nRUN mkdir /tmp/v && touch /tmp/v/.wh..wh..opq /tmp/v/x\n"
        "RUN touch /tmp/.wh.gone /tmp/gone\n",
    ),
    "names of whiteouts of what is there": Recipe(
        "RUN touch /.wh.etc /.wh..wh..opq /.wh.none /usr/.wh.bin /usr/share/.wh..wh..opq && mkdir /.wh.opt /.wh..wh.plnk\nRUN touch /tmp/.wh. && ln -s x /tmp/.wh.l && mkfifo /tmp/.wh.f\n"
        "RUN ls -d /etc /opt /usr/bin /usr/share/* >/seen\nUSER nobody\nRUN mkdir -p /tmp/.wh.u/v && touch /tmp/kept\nUSER root\n"
        "COPY a /tmp/a\nCOPY a/.wh.bin a/z /usr/\nCOPY a/.wh.bin /tmp/other\nCOPY --chmod=755 a /tmp/b\nRUN --mount=target=/mnt ls -A /mnt/a >/bound; ls /usr >>/seen\n",
        {"a/.wh.bin": "b", "a/.wh..wh..opq": "", "a/sub/.wh.x/y": "y", "a/z": "z", ".dockerignore": "Dockerfile\n"},
    ),
    "patterns": Recipe(
        "COPY ** /tmp/1/\nCOPY d/** /tmp/2/\nCOPY d/*/**.txt /tmp/3/\nCOPY --from=zero /e/** /tmp/4/\nCOPY d/[a-c]* d/s?b /tmp/5/\nCOPY nothing* /tmp/6/\nCOPY nothing* d/b /tmp/7/\n"
        'COPY d/\\[x\\] /tmp/8/\nCOPY ["d/[[]x]", "/tmp/9/"]\nCOPY d/[^a-e]* /tmp/10/\nCOPY */sub/../b /tmp/11/\n',
        {
            "top": "t",
            "d/b": "b",
            "d/e": "e",
            "d/sub/c.txt": "c",
            "d/sub/deep/f.txt": "f",
            "d/[x]": "x",
            ".dockerignore": "Dockerfile\n",
        },
        directives=f"FROM {BASE} AS zero\nRUN mkdir -p /e/a/b && touch /e/x /e/a/y /e/a/b/z\n",
    ),
    "a mark before a comment": Recipe(
        "ENV A=b\nRUN echo $A >/x\n",
        directives="\ufeff# a comment\n#another=one\n",
    ),
    "a mark and a directive": Recipe(
        "RUN echo a `\n  b \\>/x\nRUN dir=C:\\\nENV P=C:\\x\n", directives="\ufeff# escape=`\n"
    ),
} | KINDS
