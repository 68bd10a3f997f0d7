"""Operations on tensors that do not depend on the format of a weight."""
