#!/bin/sh
# Tests the Python package for ARM, unpacked into the folder SITE, with the Python of Debian in the folder SYSTEM, under qemu:
# its command, and its tests without those of dozens of processes. Usage: try_arm_wheel.sh SYSTEM SITE
set -eu
system=$1 site=$2
python=$system/usr/bin/emulated-python
# The processes that tests start need qemu too: no kernel runs a program for ARM.
cat > "$python" << END
#!/bin/sh
exec qemu-aarch64 -0 "\$0" -L '$system' '$system/usr/bin/python3.11' "\$@"
END
chmod +x "$python"
export PYTHONPATH="$site" PYTHONDONTWRITEBYTECODE=1
"$python" -c "import platform, msdeform, numpy
print(platform.machine(), msdeform.device_info()['cpu']['instructions'], 'NumPy', numpy.__version__)"
"$python" "$site/bin/msdeform" --version | grep '^msdeform '
cd bindings/python
exec "$python" -m pytest --quiet -p no:cacheprovider tests/test_facts.py tests/test_first_look.py tests/test_numpy.py
