"""python -m regard.fast: the accelerator compiled into the package, for machines that have no compiler."""

import sys

from regard.fast.build import Unbuilt, build_in

if {"--help", "-h"} & {*sys.argv[1:]}:
    sys.exit(print(__doc__))
if sys.argv[1:]:
    sys.exit(f"{' '.join(sys.argv[1:])}: python -m regard.fast takes no words; CXX names the compiler")
try:
    print(build_in())
except Unbuilt as error:
    sys.exit(str(error))
