#!/bin/sh
# Rustdoc of the pinned compiler with the options of a nightly one.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
