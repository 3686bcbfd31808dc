# shellcheck shell=sh
# Empty the directories after $1 and make them root's, so that nothing left there can be taken for a verdict. The first
# is the verifier's output: $1 is the user to give it to, or "" where verifier and policy are one user.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
owner=$1
shift
output=$1

# Set left to something that lies in directory $1; fail where nothing does.
find_left() {
    for left in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ -e "$left" ] || [ -L "$left" ]; then return 0; fi
    done
    return 1
}

for directory; do
    if [ -L "$directory" ] || { [ -e "$directory" ] && [ ! -d "$directory" ]; }; then rm -rf -- "$directory"; fi
done
# Closed first: who runs on must not fill what is being emptied.
mkdir -p -- "$@" && chmod 755 -- "$@"
chown root -- "$@" 2>/dev/null
for directory; do
    if find_left "$directory"; then find "$directory" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +; fi
    # Believed only when seen: the policy may have replaced the programs above.
    if find_left "$directory"; then
        echo "$left could not be removed"
        exit 0
    fi
    [ -d "$directory" ] || { echo "$directory could not be made"; exit 0; }
done
if [ -z "$owner" ] || ! chown "$owner" -- "$output"; then chmod 777 -- "$output"; fi
echo sealed
