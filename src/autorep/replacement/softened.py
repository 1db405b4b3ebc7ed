"""Softened answers: how far one network's are from another's, and the temperature at which it is asked."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

TEMPERATURE = 4.0


def distillation(logits: Tensor, teacher: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """KL divergence from the teacher's softened answers, times the square of the temperature."""
    student_log = F.log_softmax(logits / temperature, dim=1)
    teacher_log = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(student_log, teacher_log, reduction="batchmean", log_target=True) * temperature**2
