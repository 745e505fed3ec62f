"""The clock: what a recorded run costs on a chip.

    recorder = clock.Recorder()
    run = ptxemu.launch(compiled, *args, config=ptxemu.Config(trace=True, observer=recorder))
    timing = clock.replay(recorder, clock.parse(sass), clock.CHIPS["B200"])

The emulator says what happened: which way each warp went, who waited for whom. The SASS, as `nvdisasm -g -hex -c`
prints it, says what the compiler made of it. The table of the chip says how fast its units are. Nothing is fitted to
the kernels that are timed.
"""

from .chips import CHIPS, Chip, Fact
from .path import NoWay
from .record import Recorder
from .sass import Sass, parse
from .timing import Timing, replay

__all__ = ["CHIPS", "Chip", "Fact", "NoWay", "Recorder", "Sass", "Timing", "parse", "replay"]
