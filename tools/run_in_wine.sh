#!/bin/sh
# Runs a Windows program under Wine, in a system of its own: run_in_wine.sh PROGRAM ARGUMENT...
# WINEPREFIX is the folder of that system, which is made if it is missing.
set -eu
# Without debugging output, windows, and installers that ask.
export WINEDEBUG=-all DISPLAY='' WINEDLLOVERRIDES='mscoree,mshtml='
library=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
if [ ! -e "$library" ]; then
    mkdir -p "$(dirname "$WINEPREFIX")"
    wine wineboot --init
    x86_64-w64-mingw32-gcc -shared -O1 -o "$library" "$(dirname "$0")/wine_random_numbers.c" -ladvapi32
fi
exec wine "$@"
