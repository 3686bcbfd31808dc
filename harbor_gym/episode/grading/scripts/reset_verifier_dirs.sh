# shellcheck shell=sh disable=SC2154  # common.sh stands before
# Empty the directories after $1 and give them to root, so that no leftover file can pass for a verdict. The first is the
# verifier's output: $1 is its new owner, or "" if verifier and policy are one user.
owner=$1
shift
output=$1

missing='' foreign=''
umask 022
for directory; do
    if [ -L "$directory" ] || { [ -e "$directory" ] && [ ! -d "$directory" ]; }; then rm -rf -- "$directory"; fi
    [ -d "$directory" ] || missing=1
done
[ -z "$missing" ] || mkdir -p -- "$@"
# Closed first: a process that runs on must not add files meanwhile.
chmod 755 -- "$@"
# shellcheck disable=SC3067  # a shell without -O calls chown
for directory; do [ -O "$directory" ] || foreign=1; done
[ -z "$foreign" ] || chown root -- "$@"
problem=''
for directory; do
    if find_left "$directory"; then find "$directory" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +; fi
    # Checked by builtins: the policy may have replaced the programs above.
    if find_left "$directory"; then problem="$left could not be removed"; fi
    [ -d "$directory" ] || problem="$directory could not be made"
done
if [ -z "$owner" ] || ! chown "$owner" -- "$output"; then chmod 777 -- "$output"; fi
echo "${problem:-reset}"
