"""What a trained model is worth: tasks of lm_eval, the perplexity of any text, loss by position and calibration."""
