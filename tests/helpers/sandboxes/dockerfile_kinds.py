# ruff: noqa: E501  # a Dockerfile a line
"""Dockerfiles by kind of reading in which builders differ."""

from tests.helpers.sandboxes.dockerfiles import BASE, Recipe

KINDS: dict[str, Recipe] = {
    "here-documents: more of COPY and ADD": Recipe(
        r"""
ENV A=1
COPY <<one one /tmp/x/
the document
one
COPY <<-"EOF" /tmp/tabs
	$A		tab
	EOF
WORKDIR /tmp/wd
COPY <<a.txt <<'b.txt' sub/
${A:+set} $A$A ${A}_
a.txt
${A:+set}
b.txt
COPY --chmod=u+x,go= --chown=7:8 <<EOF rel
x
EOF
ADD --chmod=4711 <<EOF /tmp/new/er/deep
#!/bin/sh
EOF
COPY <<EOF /tmp
into a directory
EOF
COPY <<EOF /tmp/empty
EOF
USER nobody
COPY <<EOF /tmp/odd
# no comment

line \
continued $A${A}\${A} `x` \\n "q $A" '$A'
  EOF
EOF
ADD <<b <<one one /tmp/order/
first
b
second
one
COPY --link <<EOF /tmp/linked/x
${NOPE:-none}${A-1}${A#1}
EOF
""",
        {"one": "1"},
    ),
    "here-documents: more of RUN": Recipe(
        r"""
ENV A=1
ARG B=two
RUN <<-EOF
	echo "$A $B" >/of-tabs
	EOF
RUN cat <<EOF >/of-quotes
"$A" '$A' \$A $(echo $B) \\
EOF
RUN 3<<EOF cat <&3 >/of-number
$A
EOF
RUN cat <<A - <<-B >/of-two
a
A
	b
	B
RUN python3 <<EOF >/of-python
print("$B")
EOF
SHELL ["/bin/bash", "-c"]
RUN <<EOF
[[ $A == 1 ]] && echo "$0 ${BASH_VERSION:+bash}" >/of-bash
EOF
RUN <<'EOF' cat >/of-first
$A
EOF
RUN <<EOF
#!/bin/sh -e
echo "$0" >/of-program
EOF
RUN if true; then cat <<EOF >/of-if; fi
inside
EOF
RUN echo $((1<<2)) "<<none" >/of-shift
""",
    ),
    "here-documents: lines that end as on Windows": Recipe(
        "COPY <<EOF /crlf\r\none\r\n\r\ntwo\r\nEOF\r\nRUN echo a \\\r\n b >/joined\r\nENV X=y\r\nRUN echo $X >/x\r\n"
    ),
    "an ignore file: exceptions below what is ignored": Recipe(
        "COPY . /all\nCOPY b* /b/\nADD f /f\nRUN --mount=type=bind,target=/b2 cd /b2 && find . | sort >/found\nRUN --mount=source=b,target=/mnt find /mnt | sort >/found-b\n"
        "COPY f/sub x* /fs/\n",
        {
            name: name
            for name in (
                *("a/keep.txt", "a/x/keep.txt", "a/x/y/keep.txt", "a/deep/xz.py", "a/deep/wz.py", "a/deep/er/xz.py"),
                *("b/c/d", "b/c/e", "b/x", "e", "f/e", "f/g", "f/sub/e", "g", "tmpfile", "f/tmp1/keep", "f/tmp1/drop"),
                *("x", "x1", "x2/y/z"),
            )
        }
        | {
            ".dockerignore": "**/*\n!a\n!**/keep.txt\na/deep/**\n!a/deep/[xy]?.py\nb/\n!b/c/d\n!x*\nx2/*/z\n/e\n!./f/../g\n!f\n**/tmp*\n!**/tmp*/keep\n"
        },
    ),
    "an ignore file: forms of patterns": Recipe(
        "COPY . /all\nRUN --mount=target=/c cp -r /c /of-mount\n",
        {
            name: name
            for name in (
                *(
                    "one.log",
                    "a/one.log",
                    "a/b/two.log",
                    "keep/one.log",
                    "[x]",
                    "x",
                    "a b/c",
                    "#hash",
                    "!bang",
                    "k/.git/x",
                ),
                *(
                    "v1/y",
                    "v10/y",
                    "deep/a/b/c/d.py",
                    "deep/a/d.py",
                    "deep/d.py",
                    "Z",
                    "z",
                    "dots/...",
                    "end/foo.bak",
                    "foo.bak",
                ),
                *("t/s", "q?", "qa", "c/c/c", "r/a.b", "r/acb"),
            )
        }
        | {
            ".dockerignore": "  *.log\t\n!keep/**\n\\[x\\]\na b\n# comment\n\\#hash\n\\!bang\n**/.git\nv?\ndeep/**/d.py\n!deep/*/d.py\nZ/\n**.bak\n!end\n/t//s\n./q\\?\n**/c/c\nr/a.b\n"
        },
    ),
    "an ignore file: all, and what comes back": Recipe(
        "COPY . /all\nCOPY --chmod=600 src /src\nCOPY src/*.md /md/\nRUN --mount=type=bind,source=src,target=/s,rw touch /s/new && find /s | sort >/found\n"
        "RUN --mount=target=/w test ! -e /w/Dockerfile && test ! -e /w/.dockerignore && ls -A /w >/listed\n",
        {
            name: name
            for name in (
                "src/a.py",
                "src/sub/b.py",
                "src/sub/deep/c.py",
                "src/sub/deep/c.md",
                "src/x.md",
                "docs/a.md",
                "empty/.keep",
                "top.py",
            )
        }
        | {
            ".dockerignore": "\ufeff# remark\r\n*\r\n!src/**/*.py\r\n!src/sub/deep\r\nsrc/sub/deep/*.md\r\n!src/x.md\r\n!empty/\r\n"
        },
        modes={"src": 0o750, "src/sub/deep": 0o701, "empty": 0o700, "src/a.py": 0o4755},
    ),
    "stages: not reached in many ways": Recipe(
        f"COPY nothing-here /x\nRUN false\nFROM nowhere.invalid/y:z AS far\nCOPY --from=far.invalid/z /a /a\nFROM far AS further\nRUN --mount=from=gone.invalid/m,target=/m true\n"
        f"FROM --platform=linux/s390x nowhere.invalid/arm AS other\nFROM {BASE} AS UPPER\nRUN echo u >/u\nFROM upper AS mid\nRUN echo m >/m\nFROM {BASE} AS mounted\nRUN echo t >/t\n"
        f"FROM scratch AS data\nCOPY one /data/\nFROM {BASE} AS twice\nRUN echo 1 >/twice\nFROM {BASE} AS twice\nRUN echo 2 >/twice\nFROM ${{PICK}}-stage AS picked\n"
        f"FROM mid\nCOPY --from=Data /data /data\nRUN --mount=from=Mounted,source=/t,target=/mnt/t cp /mnt/t /t\nRUN --mount=type=bind,from=data,target=/mnt cp -r /mnt/data /data2\nCOPY --from=twice /twice /\n",
        {"one": "1"},
        directives="ARG PICK=no\nFROM scratch AS none\n",
    ),
    "stages: chosen by an argument": Recipe(
        f"RUN echo dev >/which\nFROM {BASE} AS of-prod\nRUN exit 7\nFROM missing.invalid/it AS of-test\nFROM of-${{KIND}} AS last\nARG KIND\nRUN echo $KIND >/kind\nFROM of-${{NONE:-$KIND}}\n"
        "COPY --from=last /kind /kind\nCOPY --from=4 /kind /kind4\n",
        directives=f"ARG KIND=dev\nFROM {BASE} AS of-dev\n",
    ),
    "variables in FROM: more forms": Recipe(
        "FROM ${A:+${B}}${C:-:bookworm-slim} AS one\nRUN echo 1 >/1\nFROM ${FULL#*/} AS two\nRUN echo 2 >/2\nFROM ${FULL##*/} AS three\nRUN echo 3 >/3\n"
        "FROM --platform=${P:-$BUILDPLATFORM} 'debian':\"${TAG/wrong/slim}\" AS four\nRUN echo 4 >/4\nFROM ${NAME:-two} AS five\nFROM ${E-debian:bookworm-slim}${E+debian:bookworm-slim} AS six\nRUN echo 6 >/6\n"
        'FROM $B:bookworm${S:--slim}\nCOPY --from=one /1 /\nCOPY --from=five /2 /\nCOPY --from=three /3 /\nCOPY --from=four /4 /\nCOPY --from=six /6 /\nARG B TAG=\nRUN echo "$B $TAG $FULL" >/args\n',
        directives='ARG A=x\nARG B=debian\nARG C\nARG FULL=docker.io/library/debian:bookworm-slim P TAG="bookworm-wrong" E=\nARG FULL=x/$B:bookworm-slim\nARG TAG\n',
    ),
    "substitution: in every instruction": Recipe(
        r"""
ARG V=/a/b.c/d.e.f U=user:group N=5
ENV EMPTY= STAR='*' MIX="x${V##*/}y${N}"
LABEL a="${V%%.*}" b=${V#/*/} c=${V/b.c/B} d=${V//./} e=${V//\//_} f="${EMPTY:-${NONE:-${V%/*}}}" g=${N:+"q q"}
ENV P1=${V##} P2=${V%} P3=${V%%*} P4=${V#?} P5=${V##*[.]} P6=${STAR#\*}x P7=${V//?/z} P8=${V//*/all} P9=${V/*/once}
ENV Q1="${V#/a}" Q2='${V}' Q3=\${V} Q4=$$ Q5=$1x Q6=a$ Q7=${NONE:-a\}b} Q8=${NONE:-'a}b'} Q9=${V:?unset} QA=$N_ QB=${N}_ QC=${EMPTY+set} QD=${NONE+set}x
ENV R1=${NONE-} R2=${EMPTY-no} R3=${EMPTY:-yes} R4=${V//b/$N} R5=${V/#a/x} R6=${V//a/\/} R7="${NONE:-"in-quotes"}" R8=${NONE:-$(date)} R9=${MIX#"x"}
WORKDIR /tmp/${V#/}/$N${NONE}
COPY --chown=${U%%:*}x:${N} --chmod=${N:+7}${N}5 f-${N:-1} ${NONE:-to}/${V##*.}/
ADD f-${EMPTY:-5} /tmp/${N}${N}
USER ${N}:${N}
VOLUME /v${N} /v-${V##*.}
EXPOSE ${N}0 $N/udp
STOPSIGNAL ${N}
RUN env | grep -E '^[PQR].=' | sort >/tmp/env; pwd >>/tmp/env; id -u >>/tmp/env
""",
        {"f-5": "5"},
    ),
    "substitution: odd values": Recipe(
        'ENV A="a  b" B=a\\ b C="\\"q\\"" D=\'single "x" $A\' E="tab\tx" F=a=b=c G="$A"b\'c\' H= I="" J="#no" K=a#b\nENV old a  $A "x" \'y\'\nENV L="${A% *}" M="${A#* }"\n'
        'LABEL "k $A"=v k.$K="v" multi="line \\\n  two" \\\n  last=$L\nRUN env | grep -E "^([A-N]|old)=" | sort >/env\nARG X=$A Y="$X and $B" Z\nRUN echo "$X,$Y,$Z," >/args\n'
    ),
    "ARG and ENV: who hides whom": Recipe(
        f"ARG A=arg\nENV A=env\nRUN echo $A >/1\nARG A\nRUN echo $A >/2\nENV B=env\nARG B=arg C=$B\nENV D=$B\nRUN echo $B $C $D >/3\nARG A=again\nUSER ${{A:+nobody}}\nRUN echo $A >/tmp/4\nUSER root\nARG E\nENV E=${{E:-dflt}}\nRUN echo $E >/5\nARG E=late\nLABEL e=$E\nCMD echo $E\n"
        f'FROM {BASE} AS two\nARG A\nRUN echo "$A." >/6\nENV A=env2\nARG F=f\nFROM two\nRUN echo "$A $F" >/7\nARG A F=\nRUN echo "$A $F" >/8\nENV F=e F2=$F\nRUN echo "$F $F2" >/9\nARG PATH\nARG HOME=/h\nRUN echo $PATH $HOME >/10\nARG G="x y" H=\'$G\' I=\\$G\nRUN ["/bin/sh", "-c", "echo $G $H $I >/11"]\n'
        'ONBUILD RUN echo $G >/on\nHEALTHCHECK CMD echo $G\nENTRYPOINT ["echo", "$G"]\nARG K=1 K=2\nENV M=1 M=2 O=$K\nRUN echo $K $M $O >/12\nRUN K=3; echo $K >/13\n',
        directives="ARG A=global\nARG F\n",
    ),
    "--chown: more names and numbers": Recipe(
        "RUN echo 'w:x:1500:1600::/:/bin/sh' >>/etc/passwd && echo 'crew:x:1700:w' >>/etc/group\nCOPY --chown=nobody2:nogroup2 one /tmp/1\nCOPY --chown=w one /tmp/2\nCOPY --chown=1500 one /tmp/3\n"
        "COPY --chown=w:crew dir /tmp/4\nCOPY --chown=nobody3:crew dir /tmp/5\nCOPY --chown=0:nogroup4 one /tmp/6\nCOPY --chown=w:0 one /tmp/7\nCOPY --chown=1500:nogroup5 one /tmp/8\nCOPY --chown=33 one /tmp/9\n"
        "ADD --chown=nobody5 one /tmp/10/\nCOPY --chown=nobody6 --chmod=u=rw,go= one /tmp/11\nCOPY --chown=${NONE} one /tmp/12\nCOPY --chown=$NONE:crew one /tmp/13\nUSER w\nCOPY one /tmp/14\nCOPY --chown=crew one /tmp/15\nUSER root\n"
        "RUN sed -i /^crew/d /etc/group\nCOPY --chown=w:crew one /tmp/16\nCOPY --from=zero --chown=nobody7:crew /d /tmp/17\nRUN rm /etc/passwd\nCOPY --chown=w one /tmp/18\nCOPY --chown=12:13 one /tmp/19/20/\n",
        {"one": "1", "dir/x": "x", "packed.tar": "p"},
        directives=f"FROM {BASE} AS zero\nRUN mkdir /d && touch /d/x && chown 5:6 /d /d/x\n",
    ),
    "modes: symbolic ones": Recipe(
        "".join(
            f"COPY --chmod={mode} f d /tmp/{place}/\n"
            for place, mode in enumerate(
                (
                    *(
                        "+w",
                        "-w",
                        "=r",
                        "o=r",
                        "g=o",
                        "a-x,+X",
                        "a=rX",
                        "o+t",
                        "a+t",
                        "+s",
                        "o+s",
                        "u=g,g=o,o=",
                        "go=u-w",
                    ),
                )
            )
        ),
        {"f": "f", "d/x": "x", "d/sub/y": "y", "d/t/z": "z", "d/run": "r"},
        modes={"f": 0o6755, "d/x": 0o640, "d/sub": 0o2750, "d/t": 0o1777, "d/run": 0o751},
    ),
    "modes: symbolic ones of a stage and of ADD": Recipe(
        "COPY --from=zero --chmod=o+t,g+s /d /tmp/1\nCOPY --from=zero --chmod=+x /d/x /tmp/2\nCOPY --from=zero --chmod=go=u-w /d/* /tmp/3/\nADD --chmod=u=rX,go= d /tmp/4\nADD --chmod=a+x f packed.tar /tmp/5/\n"
        "ARG WHO=g\nCOPY --chmod=$WHO+w,o=$WHO f /tmp/6\nCOPY --chmod=u-w --chown=3:4 d /tmp/7\nCOPY --chmod=777 f /tmp/8\nCOPY --chmod=07 f /tmp/9\nCOPY --chmod=0 f /tmp/10\nCOPY --chmod=1777 d /tmp/11\n",
        {"f": "f", "d/x": "x", "d/sub/y": "y", "packed.tar": "p"},
        directives=f"FROM {BASE} AS zero\nRUN mkdir -p /d/sub && touch /d/x /d/sub/y && chmod 1777 /d/sub && chmod 604 /d/x\n",
    ),
    "mounts: sizes and secrets": Recipe(
        "".join(
            f"RUN --mount=type=tmpfs,target=/mnt,size={size} df --output=size /mnt | tail -1 | tr -d ' ' >/size-{place}\n"
            for place, size in enumerate(
                ("64k", "1.5m", "2M", "3mb", "4MiB", "1048576", "0.5m", "1MB", "0.001g", "8kib")
            )
        )
        + 'RUN --mount=type=secret,id=a,env=A,target=/tmp/a test ! -e /tmp/a && echo "none $A" >/a\nRUN --mount=type=secret,id=c,env=C,required=false echo ${C-unset} >/c\n'
        "RUN --mount=type=secret,id=d,uid=5,gid=6,mode=0400,target=d test ! -e d && echo none >/d\nENV E=kept\nRUN --mount=type=secret,id=e,env=E echo $E >/e\nRUN --mount=type=tmpfs,target=/tmp/t stat -c %a /tmp/t >/t; rmdir /tmp/t || true\n"
    ),
    "ACLs: set by a RUN": Recipe(
        "COPY acl.py /acl.py\n"
        "RUN mkdir -p /srv/d /srv/e/f && python3 /acl.py default 1000 7 /srv/d && python3 /acl.py access 1001 6 /srv/e && touch /srv/file && python3 /acl.py access 1002 7 /srv/file\n"
        "RUN touch /srv/d/new && mkdir /srv/d/sub && touch /srv/d/sub/x && cp /srv/file /srv/plain && cp -p /srv/file /srv/kept && python3 /acl.py show / >/tmp/shown\n"
        "COPY one /srv/e/copied\nRUN mv /srv/kept /srv/moved && chmod g-w /srv/file && python3 /acl.py show / >/tmp/shown2\nRUN python3 /acl.py remove /srv/d && touch /srv/d/after\n"
        "RUN python3 /acl.py show / >/tmp/shown3; stat -c '%n %a' /srv/d/* >/tmp/modes\n",
        {
            "one": "1",
            "acl.py": "import os, struct, sys\n"
            "def pack(user, rights):\n"
            "    entries = (1, 7, -1), (2, rights, user), (4, 5, -1), (16, 7, -1), (32, 5, -1)\n"
            "    return struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)\n"
            "what, *rest = sys.argv[1:]\n"
            "if what == 'show':\n"
            "    for place, folders, names in os.walk(rest[0]):\n"
            "        folders[:] = sorted(f for f in folders if place != '/' or f in ('srv', 'opt'))\n"
            "        for name in sorted((*folders, *names)):\n"
            "            path = os.path.join(place, name)\n"
            "            for kind in ('access', 'default'):\n"
            "                try:\n"
            "                    print(path, kind, os.getxattr(path, f'system.posix_acl_{kind}', follow_symlinks=False).hex())\n"
            "                except OSError:\n"
            "                    pass\n"
            "elif what == 'remove':\n"
            "    os.removexattr(rest[0], 'system.posix_acl_default')\n"
            "else:\n"
            "    os.setxattr(rest[2], f'system.posix_acl_{what}', pack(int(rest[0]), int(rest[1])))\n",
        },
    ),
    "ACLs: through stages and from the cache": Recipe(
        "RUN python3 /acl.py show / >/tmp/of-base\nFROM first AS second\nRUN mkdir /srv/d/deep && touch /srv/d/deep/x && python3 /acl.py show / >/tmp/of-stage\nUSER 1000\nRUN touch /srv/d/of-user && stat -c %a /srv/d/of-user >/tmp/mode\nUSER root\n"
        "COPY --from=first /srv/d /srv/copy\nRUN touch /srv/copy/x && python3 /acl.py show / >/tmp/of-copy\nWORKDIR /srv/d/work\nRUN touch x && stat -c %a . x >/tmp/of-work\n",
        directives=f"FROM {BASE} AS first\nCOPY acl.py /\nRUN mkdir -p /srv/d && python3 /acl.py default 1000 7 /srv/d && python3 /acl.py access 1000 7 /srv/d\nFROM first AS unused\n",
    ),
    "modes of the context: above 0777": Recipe(
        "COPY suid /tmp/1\nCOPY suid sgid d /tmp/2/\nCOPY s* /tmp/3/\nADD suid /tmp/4\nADD suid packed.tar /tmp/5/\nCOPY --chown=5:6 suid d/sgid /tmp/6/\nCOPY d /tmp/7\nCOPY . /tmp/8\nCOPY --link suid /tmp/9\nRUN --mount=target=/mnt stat -c '%n %a' /mnt/suid /mnt/d/* >/tmp/modes\n"
        "COPY d/t /tmp/10\nCOPY suid /usr/bin/true\nCOPY link /tmp/11\nCOPY links /tmp/12\nUSER 5\nCOPY suid /tmp/13\n",
        {
            "suid": "s",
            "sgid": "g",
            "d/sgid": "g",
            "d/t/x": "x",
            "d/s/y": "y",
            "d/odd": "o",
            "none": "n",
            "packed.tar": "p",
            "links/z": "z",
        },
        modes={
            "suid": 0o4755,
            "sgid": 0o2711,
            "d": 0o2775,
            "d/sgid": 0o6555,
            "d/t": 0o1777,
            "d/s": 0o2700,
            "d/odd": 0o7777,
            "none": 0,
            "links": 0o711,
        },
        links={"link": "suid", "links/l": "../suid"},
    ),
    "modes of the context: behind an ignore file": Recipe(
        "COPY . /all\nCOPY suid /one\nADD d packed.tar /d/\nRUN --mount=target=/mnt stat -c '%n %a' /mnt/suid /mnt/d /mnt/d/s >/modes\nCOPY d/s* /f/\n",
        {
            "suid": "s",
            "d/s/y": "y",
            "d/sgid": "g",
            "d/gone": "",
            "packed.tar": "p",
            ".dockerignore": "Dockerfile\n**/gone\n",
        },
        modes={"suid": 0o4711, "d": 0o1770, "d/s": 0o2755, "d/sgid": 0o2755},
    ),
    "directories that --chmod makes: more": Recipe(
        "COPY --chmod=700 f /tmp/1/2/3/f\nCOPY --chmod=640 d /tmp/4/5\nCOPY --chmod=711 f d /tmp/6/\nADD --chmod=750 f /tmp/7/8/\nWORKDIR /tmp/9\nCOPY --chmod=700 d sub/deep\nCOPY --chmod=500 f .\nCOPY --chmod=700 d /tmp/9\n"
        "COPY --chmod=600 <<EOF /tmp/10/11/doc\nx\nEOF\nCOPY --chmod=700 --chown=5:6 f /tmp/12/13/\nCOPY --chmod=4750 d /tmp/14\nRUN mkdir -m 755 -p /tmp/15/there\nCOPY --chmod=700 d /tmp/15/there\nCOPY --chmod=700 f /tmp/15/there/new/f\nCOPY --chmod=u=rwx,go= d /tmp/16/17\n"
        "COPY --chmod=777 f /tmp/18/19/f\nCOPY --chmod=022 f /tmp/20/21/f\nRUN ln -s 15 /tmp/link\nCOPY --chmod=700 f /tmp/link/through/f\nCOPY --chmod=700 e* /tmp/22/\nCOPY --chmod=700 d/sub/ /tmp/23/24/\nCOPY --chmod=700 f /new-top/x\nCOPY --from=zero --chmod=700 /d/x /tmp/25/26/x\nCOPY --from=zero --chmod=750 /d /d/x /tmp/27/\n",
        {"f": "f", "d/x": "x", "d/sub/y": "y"},
        directives=f"FROM {BASE} AS zero\nRUN mkdir -p /d/sub && touch /d/x /d/sub/y\n",
    ),
    "names of whiteouts: more": Recipe(
        "RUN mkdir -p /tmp/d && touch /tmp/d/a /tmp/d/b\nRUN rm /tmp/d/a && touch /tmp/d/.wh.b\nRUN ls -A /tmp/d | grep -v wh >/seen\nRUN mv /tmp/d/b /tmp/d/c && touch /tmp/d/.wh.c\nRUN ls -A /tmp/d | grep -v wh >>/seen; cat /etc/debian_version >/dev/null\n"
        "RUN rm -rf /tmp/d && mkdir /tmp/d && touch /tmp/d/new\nRUN ls -A /tmp/d | grep -v wh >>/seen\nRUN touch '/tmp/x.wh.y' /tmp/wh.z '/tmp/. wh.q' && mkdir /tmp/.whx\nADD w /tmp/added\nCOPY --from=zero /d /tmp/from\nRUN rm -f /usr/share/none; ln -s nowhere /tmp/.wh.link; ls /tmp/from | grep -v wh >>/seen\n",
        {"w/.wh.x": "x", "w/y": "y", "w/a.wh.b": "z"},
        directives=f"FROM {BASE} AS zero\nRUN mkdir /d && touch /d/.wh.e /d/f\n",
    ),
    "a mark before FROM": Recipe("RUN echo a >/a\n", directives="\ufeff"),
    "a mark before an ARG": Recipe("ARG T\nRUN echo $T >/a\n", directives="\ufeffARG T=x\n# remark\n\n"),
    "a mark before a blank line": Recipe("RUN echo a >/a\nENV A=1\n", directives="\ufeff\n\n  # remark\n"),
    "a mark before a directive of syntax, lines of Windows": Recipe(
        "RUN echo a \\\r\n  b >/a\r\n# remark\r\nENV A=1\r\n", directives="\ufeff# check=skip=all\r\n# remark\r\n"
    ),
    "a mark before a comment that looks like a directive": Recipe(
        "RUN echo a \\\n  # in between\n  b >/a\n", directives="\ufeff# remark\n# escape=`\n"
    ),
    "patterns: more": Recipe(
        "COPY **/x.txt /tmp/1/\nCOPY d/**/y /tmp/2/\nCOPY d* /tmp/3/\nCOPY d*/ /tmp/4/\nCOPY ./*/sub /tmp/5/\nCOPY */*/*.txt /tmp/6/\nCOPY d/?.txt d/[!x].txt /tmp/7/\nCOPY d/{x,z}.txt* /tmp/8/\nCOPY .h* /tmp/9/\nCOPY d/.* /tmp/10/\nCOPY **/ /tmp/11/\n"
        "COPY d/a**b /tmp/12/\nCOPY ../d/*.txt /tmp/13/\nCOPY /d/s*/deep /tmp/14/\nCOPY l*/y /tmp/15/\nCOPY link/*.txt /tmp/16/\nCOPY d/[a-y].txt /tmp/17/\nCOPY *.none d/x.txt /tmp/18/\nADD d/*.txt /tmp/19/\nCOPY d/\\*lit /tmp/20/\nCOPY --from=zero /e/*/y /tmp/21/\n"
        "COPY --from=zero /e/** /tmp/22/\nCOPY --from=zero e/[x-z] /tmp/23/\nCOPY --from=zero /l*/x /tmp/24/\nCOPY --from=zero /e/none* /e/x /tmp/25/\nCOPY --from=zero /e/.* /tmp/26/\nCOPY d/x.tx[t] /tmp/27\nCOPY * /tmp/28/\nCOPY d/*/ /tmp/29/\nCOPY d/[^.]* /tmp/30/\nCOPY d//x.txt d/./y.txt d/sub/../z /tmp/31/\n",
        {
            name: name
            for name in (
                *(
                    "x.txt",
                    "d/x.txt",
                    "d/y.txt",
                    "d/z",
                    "d/y",
                    "d/a.b",
                    "d/ab",
                    "d/aXXb",
                    "d/.hid",
                    "d/sub/x.txt",
                    "d/sub/deep/x.txt",
                    "d/sub/deep/y",
                ),
                *("d2/sub/w", ".hidden", ".hd/x", "d/*lit", "d/{x,z}.txt1", "real/y", "real/x.txt"),
            )
        }
        | {".dockerignore": "Dockerfile\n.dockerignore\n"},
        links={"link": "d", "lnk": "real"},
        directives=f"FROM {BASE} AS zero\nRUN mkdir -p /e/a /e/b/c && touch /e/x /e/y /e/.h /e/a/y /e/b/y /e/b/c/y && ln -s e /link\n",
    ),
    "patterns: without an ignore file": Recipe(
        "COPY s** /tmp/1/\nCOPY s/** /tmp/2/\nCOPY s/*.py s/sub* /tmp/3/\nADD s/**/c.py /tmp/4/\nCOPY s/[ab].py /tmp/5/\nCOPY s?s /tmp/6/\nCOPY s/sub/*/d.py /tmp/7/\nCOPY l/*.py /tmp/8/\nRUN --mount=source=s/sub,target=/mnt ls -R /mnt >/listed\nCOPY s/link* /tmp/9/\nCOPY s/link /tmp/10\nCOPY s/linked /tmp/11\n",
        {
            name: name
            for name in ("s/a.py", "s/b.py", "s/c.txt", "s/sub/c.py", "s/sub/x/d.py", "s/sub2/c.py", "s/sub/.h")
        },
        links={"l": "s", "s/link": "a.py", "s/linked": "sub"},
    ),
}

KINDS["ACLs: through stages and from the cache"].files.update({"acl.py": KINDS["ACLs: set by a RUN"].files["acl.py"]})
