"""The commands: comera-pretrain and the others, which a clone also starts as launch/*.py and data_prep/*.py."""
