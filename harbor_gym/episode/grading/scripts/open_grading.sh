# shellcheck shell=sh
# Make what grading needs and the policy may have removed: the directory $3 ("" for none) with owner $1 and mode $2, and
# the log directories after it, writable for all. Files in place of these directories or of their parents are removed.
owner=$1 mode=$2 workdir=$3
shift 3
umask 022

# Make directory $1 and those above it.
make() {
    [ -d "$1" ] && return
    case ${1%/*} in '') ;; *) make "${1%/*}" ;; esac
    [ -d "$1" ] || rm -f -- "$1"
    mkdir -- "$1"
}

problem=''
if [ -n "$workdir" ] && [ ! -d "$workdir" ]; then
    make "$workdir"
    chown "$owner" -- "$workdir"
    chmod "$mode" -- "$workdir"
fi
for directory; do
    if [ ! -d "$directory" ]; then
        make "$directory"
        chmod 777 -- "$directory"
    fi
done
for directory in ${workdir:+"$workdir"} "$@"; do
    [ -d "$directory" ] || problem="$directory could not be made"
done
echo "${problem:-opened}"
