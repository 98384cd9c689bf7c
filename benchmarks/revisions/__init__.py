"""Has a step become slower since another revision?"""
