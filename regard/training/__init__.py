"""From a task and a model to weights: the loop, optimizer and schedules, checkpoints that survive a kill, the log.

device = settle(config)                                     seeds first, then the model
run = start(folder, model, config, device=device, dim=512)
train(run, task, config)                                    begins, or goes on where it was stopped
"""

from regard.training.loop import train
from regard.training.run import Run, settle, start
from regard.training.stop import Stopped

__all__ = ["Run", "Stopped", "settle", "start", "train"]
