"""The reader of bash against bash itself: the same words, without running anything."""

import shutil
import subprocess

import pytest

from planner.frameworks.shell.marks import mark, unmarked, unresolved
from planner.frameworks.shell.script import MAX_ROUNDS, read_script

SNIPPETS = {
    "defaults": 'TP=${TP:-8}; PP=${PP-2}; show $TP $PP ${CP:=3} $CP "${X:-a b}" ${Y:-c d}',
    "alternative": 'A=1; show ${A:+yes} ${B:+no} "${B:+no}" ${A+set}',
    "arithmetic": "A=7; B=2; show $((A*B)) $((A/B)) $((-7/2)) $((-7%2)) $((A**B)) $(( (A+B)*2 ))",
    "arithmetic 2": "N=4; M=$((N*8)); ((M+=1)); let K=M*2; show $M $K $((M>3?10:20)) $((N==4))",
    "counting": "I=3; ((I++)); J=$((I--)); show $I $J $((++I))",
    "hexadecimal": "A=0x10; show $((A+1)) $((0x0f))",
    "arrays": 'A=(--a 1 --b "x y"); show "${A[@]}"; show ${A[@]}; show "${A[*]}" ${#A[@]} ${A[3]}',
    "growing": 'A=(1); A+=(2 "3 4"); B=("${A[@]}" 5); show "${B[@]}"; A[0]=9; show ${A[0]}',
    "empty array": 'A=(); show x "${A[@]}" y ${A[@]} z "a${A[@]}b"',
    "glued array": 'A=(1 2 3); show "x${A[@]}y" "${A[@]/#/-}"',
    "comments": "A=(\n  --a 1 # one\n  # --b 2\n  --c 3\n)\nshow ${A[@]} # the end",
    "continuation": 'A="--a 1 \\\n  --b 2"\nshow $A \\\n  --c 3',
    "quotes": """X=1; show "$X" '$X' "a'b" 'a"b' a\\ b "\\$X" $'t\\tb' "\\"q\\"" """,
    "glued quotes": 'X="a b"; show pre"$X"post pre$X"post" --k="$X" --k=$X',
    "splitting": 'X="  a   b "; show $X end; Y=" $X "; show x$Y',
    "strings": 'A="x"; A+=" y"; A="$A ${A} z"; show "$A" $A',
    "if": 'D=fp8; if [[ "$D" == "fp8" ]]; then show a; else show b; fi',
    "elif": "N=5; if [ $N -gt 8 ]; then show a; elif [ $N -ge 5 ]; then show b; else show c; fi",
    "tests": 'X=; [ -z "$X" ] && show a; [ -n "$X" ] || show b; [[ -z $Y && 3 -lt 4 ]] && show c',
    "tests 2": "A=a.py; if [[ $A == *.py ]]; then show py; fi; if [[ $A =~ ^a ]]; then show a; fi;"
    " if ! [ 1 = 2 ]; then show not; fi; if [ a != b ] && [ 1 -ne 2 ]; then show both; fi",
    "arithmetic test": "A=3; if (( A > 2 )); then show big; fi; (( A < 2 )) || show notsmall",
    "case": "M=8B; case $M in 7b|8B) L=32;; 70*) L=80;; *) L=0;; esac; show $L",
    "case default": "case ${M:-none} in a) show a;; n*) show n;; esac",
    "for": 'for i in 1 2 3; do show n$i; done; A=(x y); for a in "${A[@]}"; do show $a; done',
    "while": "I=0; while [ $I -lt 3 ]; do show $I; I=$((I+1)); done",
    "functions": 'f() { local x=$1; show f $x "$@" $#; }; f a "b c"; function g { f "$1"; }; g q',
    "return": "f() { show a; return 0; show b; }; f; show c",
    "eval": 'C="show a $((1+1))"; eval $C; D="show \'x y\'"; eval "$D"',
    "bash -c": 'X=3; bash -c "show2 $X; show2 y" || true; show z',
    "export": "export A=1 B=2; C=3; export C; show $A $B $C",
    "prefix": "A=1; A=2 show x; show $A",
    "cut": 'P=/a/b/c.py; show ${P##*/} ${P#/} ${P%.py} ${P%%/*} ${P%/*} "${P/b/x}" ${P//\\//-}',
    "case of letters": "A=Ab; show ${A^^} ${A,,} ${#A} ${A:0:1} ${A:1}",
    "indirect": "A=B; B=7; show ${!A}",
    "echo": "A=$(echo 3); B=$(expr 2 + 5); show $A $B $(echo a b)",
    "heredoc": 'X=5\nread -r -d "" F <<EOT || true\n--a $X\n--b ${X}1 $((X+1))\nEOT\nshow $F',
    "quoted heredoc": "X=5\nread -r -d '' F <<'EOT' || true\n--a $X\nEOT\nshow \"$F\"",
    "subshell": "A=1; (A=2; show $A); show $A",
    "group": "A=1; { A=2; show $A; }; show $A",
    "list": "true && show a; false || show b; true && false || show c",
    "set": "set -- p q; show $1 $2 $#; shift; show $1",
    "positional defaults": 'show ${1:-x} ${2:-"y z"}',
    "unset": "A=1; unset A; show ${A:-gone}",
    "pipe": "X=1 ; show $X | cat",
    "redirect": "show a > /dev/null 2>&1; show b 2>/dev/null",
    "nested defaults": "A=${B:-${C:-4}}; show $A ${D:-$((A*2))}",
}


def words_of_bash(text: str) -> list[list[str]]:
    """What bash passes to `show`; fields end with a unit separator, calls with a record's."""
    head = (
        "show() { printf '%s\\037' \"$@\" >&3; printf '\\036' >&3; }; show2() { :; };"
        " export -f show2\n"
    )
    done = subprocess.run(
        ["bash", "-c", "exec 3>&1 1>/dev/null\n" + head + text],
        capture_output=True,
        text=True,
        timeout=20,
        env={"PATH": "/usr/bin:/bin"},
    )
    calls = done.stdout.split("\036")[:-1]
    return [call.split("\037")[:-1] for call in calls]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", SNIPPETS)
def test_words_are_those_of_bash(name: str) -> None:
    text = SNIPPETS[name]
    found = [list(c.argv[1:]) for c in read_script(text).commands if c.argv[0] == "show"]
    assert found == words_of_bash(text)


def commands(text: str, **env: str) -> list[list[str]]:
    return [[unmarked(w) for w in c.argv] for c in read_script(text, env).commands]


def test_what_the_script_does_not_say_keeps_its_name() -> None:
    text = 'X=$(hostname | head -1)\npython a.py --tp $TP --x "$X" --n $((2*N*M)) $1 ${D}/f'
    (command,) = read_script(text).commands
    assert [unmarked(w) for w in command.argv] == [
        "python",
        "a.py",
        "--tp",
        "${TP}",
        "--x",
        "$(hostname | head -1)",
        "--n",
        "$((N, M))",
        "${1}",
        "${D}/f",
    ]
    assert unresolved(command.argv[7]) == ("N", "M")


def test_marks_survive_eval_and_quotes() -> None:
    assert commands('C="python a.py --x $(nproc; date)"\neval $C') == [
        ["python", "a.py", "--x", "$(nproc; date)"]
    ]


def test_given_variables_win_over_defaults_not_over_assignments() -> None:
    text = "A=${A:-1}; B=2; python x.py $A $B"
    script = read_script(text, {"A": "7", "B": "9"})
    assert script.commands[0].argv[2:] == ("7", "2")
    assert script.ignored_env == ("B",)


def test_conditions_that_cannot_be_known_are_not_met_and_said() -> None:
    script = read_script(
        "if docker ps; then A=1; else A=2; fi\n[ -f x ] && B=1\npython a.py $A $B"
    )
    assert [unmarked(w) for w in script.commands[-1].argv[2:]] == ["2", "${B}"]
    assert script.notes == ["line 1: the condition `docker ps` is taken as not met"]


def test_exit_ends_the_script_and_an_unset_variable_is_empty_in_conditions() -> None:
    text = 'if [ -n "$WANDB" ]; then python w.py; fi\n'
    text += 'if [ -z "$X" ]; then python a.py; exit 1; fi\npython b.py'
    assert commands(text) == [["python", "a.py"]]


def test_files_written_by_heredocs_and_echo() -> None:
    text = (
        'N=4\nF=ds.json\ncat <<EOT > $F\n{"a": $N, "b": [1, 2]}\nEOT\n'
        "cat > plain.json <<'X'\n{\"a\": $N}\nX\necho '{}' > e.json\ntee t.json <<EOF\nq\nEOF\n"
    )
    assert read_script(text).files == {
        "ds.json": '{"a": 4, "b": [1, 2]}\n',
        "plain.json": '{"a": $N}\n',
        "e.json": "{}",
        "t.json": "q\n",
    }


def test_exported_and_prefixed_variables_belong_to_the_command() -> None:
    text = "export A=1\nB=2\nC=3 torchtune x.py\npython y.py"
    first, second = read_script(text).commands
    assert dict(first.env) == {"A": "1", "C": "3"}
    assert dict(second.env) == {"A": "1"}
    assert (first.line, second.line) == (3, 4)


def test_sourced_files_are_those_that_the_caller_reads() -> None:
    files = {"sizes.env": "TP=4\n"}
    text = "source ./sizes.env\n. other.env\npython a.py $TP"
    script = read_script(text, None, lambda name: files.get(name.removeprefix("./")))
    assert script.commands[0].argv == ("python", "a.py", "4")
    assert script.notes == ["line 2: `source other.env` is not followed: no such file beside it"]


def test_loops_end() -> None:
    assert len(read_script("while true; do python a.py; done").commands) == MAX_ROUNDS
    assert read_script("f() { f; }; f; python a.py").commands[-1].argv == ("python", "a.py")
    endless = "while true; do while true; do while true; do A=1; done; done; done; python a.py"
    assert read_script(endless).commands == []


def test_broken_scripts_are_read_as_far_as_they_go() -> None:
    for text in ("", "if [", "python a.py $((", 'X="', "A=(", "\x00\n", "case x in", "$(("):
        read_script(text)


def test_marks() -> None:
    text = f"a{mark('TP')}b{mark('$(x y)')}"
    assert unresolved(text) == ("TP", "$(x y)")
    assert unmarked(text) == "a${TP}b$(x y)"
