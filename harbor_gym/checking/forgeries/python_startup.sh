# shellcheck shell=bash disable=SC2154,SC2034 # common.sh comes first and sets what the tricks use
# Files that Python and pytest run by themselves, where they look for them.
mapfile -t places < <(python3 -c 'import site, sys; print(*sys.path[1:], site.getusersitepackages(), sep="\n")')
for place in "${places[@]}" "$PWD" "$HOME" / /tests /app; do
    [ -n "$place" ] || continue
    mkdir -p "$place"
    for name in sitecustomize.py usercustomize.py conftest.py forge.pth; do
        printf '%s\n' "$forge_in_python" >"$place/$name"
    done
done
