"""Characters that control a terminal or turn its text, and their escapes for `str.translate`."""

DIRECTIONS = {
    code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Escapes of marks that change the direction of text."""
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
CONTROLS |= DIRECTIONS | {code: f"\\u{code:04x}" for code in (0x2028, 0x2029)}
"""Escapes of control characters, separators of lines and marks of direction."""
