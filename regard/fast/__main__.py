"""python -m regard.fast: the accelerator compiled into the package, for machines that have no compiler."""

import sys

from regard.fast.build import Unbuilt, build_in

try:
    print(build_in())
except Unbuilt as error:
    sys.exit(str(error))
