# shellcheck shell=sh disable=SC2154  # common.sh stands before
# Empty the directories after $1 and make them root's, so that nothing left there can be taken for a verdict. The first
# is the verifier's output: $1 is the user to give it to, or "" where verifier and policy are one user.
owner=$1
shift
output=$1

missing='' found='' foreign=''
umask 022
for directory; do
    if [ -L "$directory" ] || { [ -e "$directory" ] && [ ! -d "$directory" ]; }; then rm -rf -- "$directory"; fi
    if [ ! -d "$directory" ]; then missing=1; elif [ "$directory" != "$output" ]; then found=1; fi
done
# Where nobody runs on, nobody can take the place of a directory that whoever writes there will make, and only the
# output's mode matters, which is set in the end.
if [ "${others:-1}" = 0 ] && [ -d "$output" ] && [ -z "$found$owner" ]; then
    set -- "$output"
else
    [ -z "$missing" ] || mkdir -p -- "$@"
    # Closed first: who runs on must not fill what is being emptied.
    chmod 755 -- "$@"
fi
# shellcheck disable=SC3067  # where it is not known, chown is called
for directory; do [ -O "$directory" ] || foreign=1; done
[ -z "$foreign" ] || chown root -- "$@"
problem=''
for directory; do
    if find_left "$directory"; then find "$directory" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +; fi
    # Believed only when seen: the policy may have replaced the programs above.
    if find_left "$directory"; then problem="$left could not be removed"; fi
    [ -d "$directory" ] || problem="$directory could not be made"
done
if [ -z "$owner" ] || ! chown "$owner" -- "$output"; then chmod 777 -- "$output"; fi
echo "${problem:-sealed}"
