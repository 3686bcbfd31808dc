# Read by the policy's interactive shell: the user's own settings, then a hook that notes each prompt in a file.
# shellcheck disable=SC1090
if [ -f ~/.bashrc ]; then . ~/.bashrc; fi

# A host name that differs from sandbox to sandbox says nothing and costs tokens.
# shellcheck disable=SC1003  # a backslash is meant
PS1=${PS1//'\\'/$'\1'}
PS1=${PS1//\\[hH]/sandbox}
# shellcheck disable=SC1003  # a backslash is meant
PS1=${PS1//$'\1'/'\\'}

__prompt_status() { __prompt_code=$?; return "$__prompt_code"; }
__prompt_mark() {
    printf '%s:%s:%s\n' "$$" "$((__prompt_count += 1))" "${__prompt_code:-0}" >|"@DIR@/prompt" || :
    # A FIFO opened for both takes the byte, and drops it where no one waits.
    # shellcheck disable=SC2015  # neither may fail the prompt
    [ -p "@DIR@/nap" ] && printf '\n' 1<>"@DIR@/nap" || :
} 2>/dev/null

if ((BASH_VERSINFO[0] > 5 || (BASH_VERSINFO[0] == 5 && BASH_VERSINFO[1] >= 1))); then
    PROMPT_COMMAND=(__prompt_status "${PROMPT_COMMAND[@]}" __prompt_mark)
else
    # shellcheck disable=SC2178
    PROMPT_COMMAND=$'__prompt_status\n'"${PROMPT_COMMAND:-:}"$'\n__prompt_mark'
fi
