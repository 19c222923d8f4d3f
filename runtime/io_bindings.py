"""Bindings of inputs and outputs that can move from the sparse session to the plain one."""

from typing import Any

import onnxruntime as ort

_BINDS = ("bind_cpu_input", "bind_input", "bind_ortvalue_input", "bind_output", "bind_ortvalue_output")


class MovableBinding(ort.IOBinding):  # type: ignore[misc]
    """An `onnxruntime.IOBinding` that remembers what was bound, and binds it again for another session."""

    def __init__(self, session: ort.InferenceSession) -> None:
        super().__init__(session)
        self._at = session
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in _BINDS:
            return found

        def bind(*given: Any, **named: Any) -> Any:
            result = found(*given, **named)
            self._calls.append((name, given, named))
            return result

        return bind

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        super().clear_binding_inputs()
        self._calls = [call for call in self._calls if not call[0].endswith("input")]

    def clear_binding_outputs(self) -> None:
        """Forget all outputs."""
        super().clear_binding_outputs()
        self._calls = [call for call in self._calls if not call[0].endswith("output")]

    def move_to(self, session: ort.InferenceSession) -> None:
        """Bind everything for another session; nothing happens if it is the same."""
        if session is self._at:
            return
        super().__init__(session)
        self._at = session
        for name, given, named in self._calls:
            getattr(super(), name)(*given, **named)
