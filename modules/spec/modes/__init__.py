"""The modes of preference training: one file each, found by ``modules.spec.registry``."""
