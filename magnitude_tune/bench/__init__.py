"""How fast is it really?"""
