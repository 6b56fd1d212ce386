#!/bin/sh
# Links for old C libraries of Linux, as `maturin --zig` does. Maturin must be on the search path.
exec maturin zig cc -- -target "$(uname -m)-linux-gnu.2.17" "$@"
