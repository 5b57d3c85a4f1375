"""The names of a model's classes, in a model file or an exported one."""


def read_class_names(names: object) -> tuple[str, ...]:
    """Return the names that a file holds. Raises TypeError unless they are texts, all different."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("its classes are not a list of names")
    if len(set(names)) < len(names):
        raise TypeError("two of its classes have the same name")
    return tuple(names)
