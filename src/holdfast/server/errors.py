"""Refusals of operations, which are those of the protocol: a program handles them wherever its sessions are."""

from holdfast.protocol.refusal import Conflict as Conflict
from holdfast.protocol.refusal import Invalid as Invalid
from holdfast.protocol.refusal import NotFound as NotFound
from holdfast.protocol.refusal import OperationError as OperationError
