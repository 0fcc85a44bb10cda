#!/bin/sh
# Prints the Python to set up with: $1 alone if it is given, else the first of the usual names that
# really runs and is new enough (a pyenv shim is there for every version and fails for most).
# The check itself runs on any Python since 2.6, so an old one is named and not a SyntaxError.

check='import sys
sys.stdout.write("%d.%d.%d" % sys.version_info[:3])
sys.exit(sys.version_info < (3, 11))'

given=$1
if [ -z "$given" ]; then
    set -- python3 python3.13 python3.12 python3.11 python
fi

seen=''
for candidate in "$@"; do
    if version=$("$candidate" -c "$check" 2>/dev/null </dev/null); then
        printf '%s\n' "$candidate"
        exit 0
    elif [ -n "$version" ]; then
        seen="$seen${seen:+, }$candidate is $version"
    fi
done

if [ -n "$given" ]; then
    seen=${seen:-$given does not run}
    next='name another, or leave PYTHON out and make looks for one'
else
    seen=${seen:-no Python was found}
    next='install a newer one or, if it is elsewhere, name it: make PYTHON=/path/to/python3.12 ...'
fi
echo "setup: clearhead needs Python 3.11 or newer; $seen: $next" >&2
exit 1
