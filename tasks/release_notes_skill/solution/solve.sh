#!/bin/bash
set -e
# Entries of one section: breaking, and type where one is asked for.
entries() {
    awk -F '\t' -v breaking="$1" -v type="${2-}" '
        NR > 1 && $2 != "internal" && $3 == breaking && (type == "" || $2 == type) {
            printf "%d\t- %s: %s (#%s)\n", $1, $4, $5, $1
        }' /srv/kettle/changes.tsv | sort -n | cut -f 2-
}
IFS=. read -r major _ </srv/kettle/VERSION
{
    printf '## %d.0.0\n\n### Breaking\n' $((major + 1))
    entries yes
    printf '\n### Added\n'
    entries no added
    printf '\n### Fixed\n'
    entries no fixed
} >~/NOTES.md
