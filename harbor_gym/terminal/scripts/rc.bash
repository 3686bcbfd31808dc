# Read by the policy's interactive shell: load the user's own settings, then add marks to the prompts.
# A mark is "<nonce> <pid> <count> <kind>": r runs a command, m needs more input, "p <exit code> <commands run>" is a prompt,
# where the shell counts the commands that it runs (a refused line keeps the exit code of the command before it). tmux
# keeps the last mark as the pane's path (OSC 7); the window's name after it (\ek) makes tmux notify its control clients.
# Nobody waits for the begin of a command, so that is not notified.
# The leading \e\\ ends a string that a program left open.
# shellcheck disable=SC1003,SC1090,SC2016,SC2034
if [ -f ~/.bashrc ]; then . ~/.bashrc; fi

__marks=$RANDOM __runs=
if ((BASH_VERSINFO[0] > 4 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] >= 4))); then __runs=0; fi
PS0=$PS0'\e\\\e]7;@NONCE@ $$ $((__runs+=1,__marks+=1+RANDOM)) r\a'
PS2=$PS2'\[\e\\\e]7;@NONCE@ $$ $((__marks+=1+RANDOM)) m\a\ek@NONCE@\e\\\]'
# The exit code is saved before a $(...) in the user's prompt can change it. A program that was killed may have left the
# terminal in the alternate screen (which is entered first: else its end would move the cursor), with origin mode and margins
# (whose end moves it, too: it is saved meanwhile), line drawing characters, no line wrap, insertion or a hidden cursor.
__prompt_begin='${__marks:0:$((__exit_code=$?,0))}\[\e[?1049h\e[?1049l\e7\e[?6l\e[r\e8\e(B\017\e[?7h\e[4l\e[?25h\]'
__prompt_end='\[\e\\\e]7;@NONCE@ $$ $((__marks+=1+RANDOM)) p $__exit_code${__runs:+ $__runs}\a\ek@NONCE@\e\\\]'

# Marks a PS1 that is not marked yet. A loop over an empty list runs no command: no trap fires, `set -x` prints nothing.
# The host name is replaced: it differs from sandbox to sandbox, carries no information and costs tokens.
declare -A __marked=()
__mark_prompt='for __ps in ${__marked[x${PS1-}]-x}; do
    if [[ ${PS1-} != *@NONCE@* ]]; then
        PS1=${PS1-} PS1=${PS1//"\\\\"/$'\''\1'\''}
        PS1=${PS1//\\[hH]/sandbox} PS1=${PS1//$'\''\1'\''/"\\\\"}
        PS1=$__prompt_begin$PS1$__prompt_end
    fi
    __marked[x$PS1]=
done'
if ((BASH_VERSINFO[0] > 5 || (BASH_VERSINFO[0] == 5 && BASH_VERSINFO[1] >= 1))); then
    PROMPT_COMMAND+=("$__mark_prompt")
else
    # shellcheck disable=SC2178,SC2128
    PROMPT_COMMAND=${PROMPT_COMMAND:+$PROMPT_COMMAND$'\n'}$__mark_prompt
fi
unset __mark_prompt
