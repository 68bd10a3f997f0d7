"""The command comera-pretrain, from a clone: deepspeed launch/pretrain.py --config FILE [section.key=value …]"""

from comera_dist.commands.pretrain import main

if __name__ == "__main__":
    main()
